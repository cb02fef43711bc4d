/* What a log may say, from what decomfl itself reads logs by. */
#ifndef DECOMFL_RULES_H
#define DECOMFL_RULES_H

typedef struct {
    const char *key, *kind;    /* a text, hex, name, truth, table, list, whole, wholes (a list of them) or real */
    int optional;              /* 1: it may be left out; 2: it may be null, too */
    const char *least, *most;  /* of a number, or of those of a list; most is the digits of hex, too */
    int longest;               /* of a list; of a real number that stands there as a whole one, its bits, 0 for any */
    const char *names, *words; /* what it may be, with a space after each; what it must be, in words */
} rule;

// Rules: python -m docs.reader_rules writes them.
#define NO_LOW_RANK "as only version 0.1 of decomfl-lab has low-rank directions"
enum { LOW_RANK = 3, MOST_SCALARS = 1073741820 };

static const rule HEADER_RULES[] = {
    {"run_seed", "whole", 0, "0", "18446744073709551615", 0, "", "be an integer in 0..18446744073709551615"},
    {"config", "table", 0, "0", "0", 0, "", "be a table"},
    {"data", "text", 0, "0", "0", 0, "", "be text"},
    {"source", "text", 1, "0", "0", 0, "", "be text"},
    {"code", "text", 1, "0", "0", 0, "", "be text"},
    {"shape", "wholes", 0, "1", "281474976710656", 16, "", "be a list of at most 16 whole numbers in 1..281474976710656"},
    {"dtype", "name", 0, "0", "0", 0, "bfloat16 bool float16 float32 float64 int16 int32 int64 int8 uint8 ", "be one of bfloat16, bool, float16, float32, float64, int16, int32, int64, int8, uint8"},
    {"classes", "whole", 0, "0", "16777216", 0, "", "be a whole number in 0..16777216"},
    {"d", "whole", 0, "1", "281474976710656", 0, "", "be a whole number in 1..281474976710656"},
    {"x0", "hex", 0, "0", "32", 0, "", "be text of 32 hexadecimal digits"},
    {"stream", "whole", 0, "1", "1", 0, "", "be 1"},
    {"start", "table", 1, "0", "0", 0, "", "be a table"},
    {"tensors", "list", 1, "0", "0", 65536, "", "be a list of at most 65536"},
    {"groups", "list", 1, "0", "0", 4096, "", "be a list of at most 4096"},
    {0}};

static const rule START_RULES[] = {
    {"key", "hex", 0, "0", "16", 0, "", "be text of 16 hexadecimal digits"},
    {"tensors", "list", 0, "0", "0", 65536, "", "be a list of at most 65536"},
    {0}};

static const rule TENSOR_RULES[] = {
    {"draw", "name", 0, "0", "0", 0, "constant uniform normal ", "be one of constant, uniform, normal"},
    {"scale", "real", 0, "-3.4028234663852886e+38", "3.4028234663852886e+38", 0, "", "be a float32 number"},
    {"shape", "wholes", 0, "0", "9223372036854775807", 16, "", "be a list of at most 16 whole numbers in 0..9223372036854775807"},
    {"cut", "real", 2, "0.1", "10", 0, "", "be in 0.1..10"},
    {0}};

static const rule CONFIG_RULES[] = {
    {"rank", "whole", 1, "1", "1", 0, "", "be 1, as only version 0.1 of decomfl-lab has low-rank directions"},
    {"distribution", "name", 1, "0", "0", 0, "gaussian sphere rademacher ", "be one of gaussian, sphere, rademacher, as only version 0.1 of decomfl-lab has low-rank directions"},
    {"method", "text", 1, "0", "0", 0, "", "be text"},
    {"clients", "whole", 1, "1", "9223372036854775807", 0, "", "be an integer of at least 1"},
    {"rounds", "whole", 1, "1", "9223372036854775807", 0, "", "be an integer of at least 1"},
    {"seed", "whole", 1, "0", "18446744073709551615", 0, "", "be an integer in 0..18446744073709551615"},
    {"momentum", "real", 1, "0", "0.9999999999999999", 63, "", "be in [0, 1)"},
    {"weight_decay", "real", 1, "0", "1.7976931348623157e+308", 63, "", "be a finite number of at least 0"},
    {"beta2", "real", 1, "0", "0.9999999999999999", 63, "", "be in [0, 1)"},
    {"epsilon", "real", 1, "5e-324", "1.7976931348623157e+308", 63, "", "be a finite number above 0"},
    {"momentum_form", "name", 1, "0", "0", 0, "torch paper ", "be one of torch, paper"},
    {"private_seeds", "truth", 1, "0", "0", 0, "", "be True or False"},
    {"rule", "name", 1, "0", "0", 0, "sgd sign adamm ", "be one of sgd, sign, adamm"},
    {"precision", "name", 1, "0", "0", 0, "float32 bfloat16 float16 ", "be one of float32, bfloat16, float16"},
    {0}};

static const rule RECORD_RULES[] = {
    {"round", "whole", 0, "0", "4294967295", 0, "", "be in 0..4294967295"},
    {"K", "whole", 0, "1", "65535", 0, "", "be in 1..65535"},
    {"P", "whole", 0, "1", "65535", 0, "", "be in 1..65535"},
    {"distribution", "whole", 0, "0", "2", 0, "", "be in 0..2"},
    {"stream version", "whole", 0, "1", "1", 0, "", "be 1"},
    {"seeding", "whole", 0, "0", "4", 0, "", "be in 0..4"},
    {0}};

// End of the rules.

#endif
