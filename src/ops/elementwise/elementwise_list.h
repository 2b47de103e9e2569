// The element-wise operators, one row each: definitions, the tables of their kernels for every
// backend, and the choice of a function object come from here (C++17: nvcc compiles this file).
//
// The first column names the operator and its function object in elementwise_math.h. A new operator
// is a formula there, a row here and an import rule. The other columns:
//
//   parameters  of the function object, by the attributes `p` (elementwise_functors.h)
//   types       floats; numbers: integers as well
//   gradient    from_input, from_output: the operator OPGrad, a function object of the gradient and
//               the input or output, with the parameters of OP; else a rule of elementwise.cpp
//   cost        cheap: one operation per element; costly: ten
//   stored      narrow: in the operands' type; wide: float32, because it needs the precision
//   fusion      of graph/op_traits.h; functions of one operand are kFloats
#pragma once

// clang-format off

// X(operator, parameters, types, gradient, cost, stored): with a gradient operator.
#define PT_UNARY_WITH_GRADIENT(X) \
  X(Clip,        (p.lower("min"), p.upper("max")),    numbers, from_input,  cheap,  narrow) \
  X(Elu,         (p.real("alpha", 1)),                floats,  from_input,  costly, narrow) \
  X(Erf,         (),                                  floats,  from_input,  costly, narrow) \
  X(Gelu,        (),                                  floats,  from_input,  costly, narrow) \
  X(HardSigmoid, (p.real("alpha", 0.2), p.real("beta", 0.5)),                               \
                                                      floats,  from_input,  cheap,  narrow) \
  X(HardSwish,   (),                                  floats,  from_input,  cheap,  narrow) \
  X(LeakyRelu,   (p.real("alpha", 0.01)),             floats,  from_input,  cheap,  narrow) \
  X(PowScalar,   (p.real("exponent", 1)),             floats,  from_input,  cheap,  wide)   \
  X(Reciprocal,  (),                                  floats,  from_output, cheap,  wide)   \
  X(Relu,        (),                                  numbers, from_output, cheap,  narrow) \
  X(Sigmoid,     (),                                  floats,  from_output, costly, narrow) \
  X(Silu,        (),                                  floats,  from_input,  costly, narrow) \
  X(Softplus,    (),                                  floats,  from_input,  costly, narrow) \
  X(Sqrt,        (),                                  floats,  from_output, cheap,  wide)   \
  X(Tanh,        (),                                  floats,  from_output, costly, narrow)

// X(function, operator, condition): the function that computes an operator of the list above, and
// its gradient, when its attributes fulfil the condition.
#define PT_UNARY_VARIANTS(X) \
  X(GeluTanh, Gelu,      p.text("approximate", "none") == "tanh") \
  X(Square,   PowScalar, p.real("exponent", 1) == T(2))           \
  X(Cube,     PowScalar, p.real("exponent", 1) == T(3))

// X(operator, types, gradient, cost, stored): with a gradient made of other operators.
#define PT_UNARY(X) \
  X(Abs,   numbers, abs_gradient,  cheap,  narrow) \
  X(Ceil,  floats,  zero_gradient, cheap,  narrow) \
  X(Exp,   floats,  exp_gradient,  costly, wide)   \
  X(Floor, floats,  zero_gradient, cheap,  narrow) \
  X(Log,   floats,  log_gradient,  costly, wide)   \
  X(Neg,   numbers, neg_gradient,  cheap,  narrow) \
  X(Round, floats,  zero_gradient, cheap,  narrow) \
  X(Sign,  numbers, zero_gradient, cheap,  narrow)

// X(operator, function, gradient): floats by the C library, where inlining gains nothing, but sines
// and cosines by vector code on CPUs. Never part of a fused chain.
#define PT_UNARY_OF_LIBRARY(X) \
  X(Acos,  std::acos,  acos_gradient)  \
  X(Acosh, std::acosh, acosh_gradient) \
  X(Asin,  std::asin,  asin_gradient)  \
  X(Asinh, std::asinh, asinh_gradient) \
  X(Atan,  std::atan,  atan_gradient)  \
  X(Atanh, std::atanh, atanh_gradient) \
  X(Cos,   std::cos,   cos_gradient)   \
  X(Cosh,  std::cosh,  cosh_gradient)  \
  X(Sin,   std::sin,   sin_gradient)   \
  X(Sinh,  std::sinh,  sinh_gradient)  \
  X(Tan,   std::tan,   tan_gradient)

// X(operator, parameters, gradient, cost, stored, fusion): two operands of one type to that type.
#define PT_ARITHMETIC(X) \
  X(Add, (),               add_gradient, cheap,  narrow, kFloats) \
  X(Div, (),               div_gradient, cheap,  narrow, kFloats) \
  X(Max, (),               max_gradient, cheap,  narrow, kFloats) \
  X(Min, (),               min_gradient, cheap,  narrow, kFloats) \
  X(Mod, (p.flag("fmod")), mod_gradient, cheap,  wide,   kNever)  \
  X(Mul, (),               mul_gradient, cheap,  narrow, kFloats) \
  X(Pow, (),               pow_gradient, costly, wide,   kNever)  \
  X(Sub, (),               sub_gradient, cheap,  narrow, kFloats)

// X(operator): comparisons (one type to bool), logic (bools to bool), and bitwise operators of
// integers.
#define PT_COMPARISONS(X) X(Equal) X(Greater) X(GreaterOrEqual) X(Less) X(LessOrEqual)
#define PT_LOGIC(X) X(And) X(Or) X(Xor)
#define PT_BITWISE(X) X(BitwiseAnd) X(BitwiseOr) X(BitwiseXor) X(ShiftLeft) X(ShiftRight)

// clang-format on
