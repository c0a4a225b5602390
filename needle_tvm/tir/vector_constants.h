// Constants for vectorised elementary functions. needle's own kernels include this table
// (src/cpu/isa/math.h and usual.h); vector_constants.py reads it for compiled code. Coefficients of
// polynomials begin with the highest power.
#pragma once

namespace needle {

// Adding one of these rounds x to an integer: 1.5 * 2^23 for float32, 1.5 * 2^52 for float64.
constexpr float kRound = 12582912.0f;
constexpr double kRoundWide = 6755399441055744.0;

// e^x: the arguments beyond which results are infinity or 0; 1 / ln(2); and -ln(2) in two parts.
constexpr float kExpMost = 89.0f;
constexpr float kExpLeast = -104.5f;
constexpr float kPerLn2 = 1.44269504f;
constexpr float kMinusLn2[] = {-0.693145752f, -1.42860677e-6f};
constexpr float kExp[] = {1.38888889e-3f, 8.33333333e-3f, 4.16666667e-2f, 1.66666667e-1f, 0.5f};
constexpr float kExpm1[] = {1.98412698e-4f, 1.38888889e-3f, 8.33333333e-3f,
                            4.16666667e-2f, 1.66666667e-1f, 0.5f};

// log1p(m) for m in [-1/3, 1/3] is m + m^2 * p(m), after N. Juffa (public posts on computing logf
// to < 1 ulp). The first coefficient of p is kLogEven(m^2) + m * kLogOdd(m^2), the others are kLog.
constexpr unsigned kTwoThirdsBits = 0x3F2AAAABu;
constexpr float kLeastNormal = 1.17549435e-38f;
constexpr float kUlpOfOne = 1.19209290e-7f;
constexpr float kLn2 = 0.693147182f;
constexpr float kLogEven[] = {-0.130310059f, -0.121484190f, -0.166846052f, -0.249996200f};
constexpr float kLogOdd[] = {0.140869141f, 0.139814854f, 0.200120345f};
constexpr float kLog[] = {0.333331972f, -0.5f};

// tanh near 0, in x^2 (coefficients from Cephes).
constexpr float kTanhNear = 0.625f;
constexpr float kTanh[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                           1.33314422036e-1f, -3.33332819422e-1f};

// erf near 0, in x^2. Elsewhere it is 1 - e^r, where r is a polynomial in |x|; its first four
// coefficients are in two pairs. After N. Juffa (public posts on computing erff to < 1 ulp).
constexpr float kErfNear = 0.927734375f;
constexpr float kErf[] = {-5.96761703e-4f, 4.99119423e-3f,  -2.67681349e-2f,
                          1.12819925e-1f,  -3.76125336e-1f, 1.28379166e-1f};
constexpr float kErfFirst[] = {-1.72853470e-5f, 3.83197126e-4f};
constexpr float kErfSecond[] = {-3.88396438e-3f, 2.42546219e-2f};
constexpr float kErfRest[] = {-1.06777877e-1f, -6.34846687e-1f, -1.28717512e-1f};

// Up to kAngleMost, subtracting a multiple of pi / 2, in three parts, loses no digits. The sine and
// cosine of the remainder are polynomials in its square (coefficients from Cephes).
constexpr float kAngleMost = 1e5f;
constexpr float kPerHalfPi = 0.636619772f;
constexpr float kMinusHalfPi[] = {-1.57079637050628662109375f, 4.37113900018624283e-8f,
                                  1.71512449129139937e-15f};
constexpr float kSine[] = {-1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f};
constexpr float kCosine[] = {2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f,
                             -0.5f};

// Up to these, the whole part of a float32 or float64 quotient is exact, or one too large.
constexpr float kQuotientMost = 4194304.0f;
constexpr double kQuotientMostWide = 2251799813685248.0;

// Powers in float64: 2^x, and log2(x) to 36 bits by the series of the inverse hyperbolic tangent.
constexpr unsigned long long kSqrtHalfBits = 0x3FE6A09E667F3BCDu;
constexpr double kPerLn2Wide = 1.4426950408889634;
constexpr double kLog2[] = {2.0 / 13, 2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3, 2.0};
constexpr double kExp2Most = 200.0;
constexpr double kLn2Wide = 0.6931471805599453;
constexpr double kExp2[] = {1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0};

}  // namespace needle
