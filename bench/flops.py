"""FLOPs of a training step of a PyTorch network, counted by hooks on its layers."""

import torch
from torch import nn
from torch.nn import functional


def count(network, *inputs):
    """FLOPs of one step: forward, the gradient of every weight, and of every layer's input but the network's own.

    Counted are convolutions, linear layers, recurrent layers and attention (in full, masked or not); a multiplication
    with an addition counts as two. Everything else is a small part of a step.
    """
    forward, first = [], []
    linear_by_columns = tuple({type(module) for module in network.modules() if type(module).__name__ == "Conv1D"})  # GPT-2's

    def layer(module, inputs, output):
        if isinstance(module, nn.Linear):
            flops = 2 * output.numel() * module.in_features
        elif isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            flops = 2 * output.numel() * module.weight[0].numel()
        elif isinstance(module, linear_by_columns):
            flops = 2 * output.numel() * module.weight.shape[0]
        elif isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
            flops = 2 * inputs[0].numel() * module.weight[0].numel()
        else:
            tokens = inputs[0].shape[0] * inputs[0].shape[1]
            flops = 2 * tokens * sum(weight.numel() for name, weight in module.named_parameters() if "weight" in name)
        # Inputs that are data need no gradient.
        first.append(flops if not inputs[0].requires_grad and not forward else 0)
        forward.append(flops)

    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.LSTM, nn.GRU,
             *linear_by_columns)
    hooks = [module.register_forward_hook(layer) for module in network.modules() if isinstance(module, kinds)]
    plain = functional.scaled_dot_product_attention

    def attention(query, key, value, **options):
        forward.append(4 * query.shape[:-1].numel() * key.shape[-2] * query.shape[-1])
        return plain(query, key, value, **options)

    functional.scaled_dot_product_attention = attention
    try:
        with torch.enable_grad():
            network(*inputs)
    finally:
        functional.scaled_dot_product_attention = plain
        for hook in hooks:
            hook.remove()
    return 3 * sum(forward) - sum(first)
