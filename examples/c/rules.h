/* What a log may say: python -m docs.reader_rules writes it from what decomfl itself reads logs by. */
#ifndef DECOMFL_RULES_H
#define DECOMFL_RULES_H

#include <stdint.h>

#define NO_LOW_RANK "as only version 0.1 of decomfl-lab has low-rank directions"
enum { LOW_RANK = 3, MOST_SCALARS = 1073741820 };
typedef enum { TEXT, HEX, NAME, TRUTH, TABLE, LIST, WHOLE, WHOLES, REAL } kind_of_value;
typedef struct {
    const char *key;
    kind_of_value kind;
    int optional;         /* 1: it may be left out; 2: it may be null, too */
    uint64_t least, most; /* of whole numbers; most is the digits of hex, too */
    uint64_t longest;     /* of a list; of a real number that stands there as a whole one, its bits, 0 for any */
    double from, to;      /* of a real number */
    const char *names, *words; /* what it may be, with a space after each; what it must be, in words */
} rule_of_value;
typedef struct { uint32_t least, most; const char *words; } rule_of_record;

static const rule_of_value HEADER_RULES[] = {
    {"run_seed", WHOLE, 0, 0u, 18446744073709551615u, 0, 0, 0, "", "be an integer in 0..18446744073709551615"},
    {"config", TABLE, 0, 0u, 0u, 0, 0, 0, "", "be a table"},
    {"data", TEXT, 0, 0u, 0u, 0, 0, 0, "", "be text"},
    {"source", TEXT, 1, 0u, 0u, 0, 0, 0, "", "be text"},
    {"code", TEXT, 1, 0u, 0u, 0, 0, 0, "", "be text"},
    {"shape", WHOLES, 0, 1u, 281474976710656u, 16, 0, 0, "", "be a list of at most 16 whole numbers in 1..281474976710656"},
    {"dtype", NAME, 0, 0u, 0u, 0, 0, 0, "bfloat16 bool float16 float32 float64 int16 int32 int64 int8 uint8 ", "be one of bfloat16, bool, float16, float32, float64, int16, int32, int64, int8, uint8"},
    {"classes", WHOLE, 0, 0u, 16777216u, 0, 0, 0, "", "be a whole number in 0..16777216"},
    {"d", WHOLE, 0, 1u, 281474976710656u, 0, 0, 0, "", "be a whole number in 1..281474976710656"},
    {"x0", HEX, 0, 0u, 32u, 0, 0, 0, "", "be text of 32 hexadecimal digits"},
    {"stream", WHOLE, 0, 1u, 1u, 0, 0, 0, "", "be 1"},
    {"start", TABLE, 1, 0u, 0u, 0, 0, 0, "", "be a table"},
    {"tensors", LIST, 1, 0u, 0u, 65536, 0, 0, "", "be a list of at most 65536"},
    {0}};

static const rule_of_value START_RULES[] = {
    {"key", HEX, 0, 0u, 16u, 0, 0, 0, "", "be text of 16 hexadecimal digits"},
    {"tensors", LIST, 0, 0u, 0u, 65536, 0, 0, "", "be a list of at most 65536"},
    {0}};

static const rule_of_value TENSOR_RULES[] = {
    {"draw", NAME, 0, 0u, 0u, 0, 0, 0, "constant uniform normal ", "be one of constant, uniform, normal"},
    {"scale", REAL, 0, 0, 0, 0, -3.4028234663852886e+38, 3.4028234663852886e+38, "", "be a float32 number"},
    {"shape", WHOLES, 0, 0u, 9223372036854775807u, 16, 0, 0, "", "be a list of at most 16 whole numbers in 0..9223372036854775807"},
    {"cut", REAL, 2, 0, 0, 0, 0.1, 10, "", "be in 0.1..10"},
    {0}};

static const rule_of_value CONFIG_RULES[] = {
    {"rank", WHOLE, 1, 1u, 1u, 0, 0, 0, "", "be 1, as only version 0.1 of decomfl-lab has low-rank directions"},
    {"distribution", NAME, 1, 0u, 0u, 0, 0, 0, "gaussian sphere rademacher ", "be one of gaussian, sphere, rademacher, as only version 0.1 of decomfl-lab has low-rank directions"},
    {"method", TEXT, 1, 0u, 0u, 0, 0, 0, "", "be text"},
    {"clients", WHOLE, 1, 1u, 9223372036854775807u, 0, 0, 0, "", "be an integer of at least 1"},
    {"rounds", WHOLE, 1, 1u, 9223372036854775807u, 0, 0, 0, "", "be an integer of at least 1"},
    {"seed", WHOLE, 1, 0u, 18446744073709551615u, 0, 0, 0, "", "be an integer in 0..18446744073709551615"},
    {"momentum", REAL, 1, 0, 0, 63, 0, 0.9999999999999999, "", "be in [0, 1)"},
    {"weight_decay", REAL, 1, 0, 0, 63, 0, 1.7976931348623157e+308, "", "be a finite number of at least 0"},
    {"beta2", REAL, 1, 0, 0, 63, 0, 0.9999999999999999, "", "be in [0, 1)"},
    {"epsilon", REAL, 1, 0, 0, 63, 5e-324, 1.7976931348623157e+308, "", "be a finite number above 0"},
    {"momentum_form", NAME, 1, 0u, 0u, 0, 0, 0, "torch paper ", "be one of torch, paper"},
    {"private_seeds", TRUTH, 1, 0u, 0u, 0, 0, 0, "", "be True or False"},
    {"rule", NAME, 1, 0u, 0u, 0, 0, 0, "sgd sign adamm ", "be one of sgd, sign, adamm"},
    {"precision", NAME, 1, 0u, 0u, 0, 0, 0, "float32 bfloat16 float16 ", "be one of float32, bfloat16, float16"},
    {0}};

static const rule_of_record K_RULE = {1, 65535, "be in 1..65535"};
static const rule_of_record P_RULE = {1, 65535, "be in 1..65535"};
static const rule_of_record DISTRIBUTION_RULE = {0, 2, "be in 0..2"};
static const rule_of_record STREAM_RULE = {1, 1, "be 1"};
static const rule_of_record SEEDING_RULE = {0, 4, "be in 0..4"};

#endif
