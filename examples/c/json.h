/* JSON as far as the header of a log needs it: whether a text is sound, the value of a key, what a value must be. */
#ifndef DECOMFL_JSON_H
#define DECOMFL_JSON_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rules.h"

#define DIGITS "0123456789"

/* The UTF-16 word of an escape \uXXXX at s; -1 if there is none. */
static long escaped(const char *s) {
    char digits[5] = {0};
    if (s[0] != '\\' || s[1] != 'u' || strspn(s + 2, DIGITS "abcdefABCDEF") < 4) return -1;
    memcpy(digits, s + 2, 4);
    return strtol(digits, NULL, 16);
}

/* The bytes of the letter at s, in UTF-8; 0 if it is none. */
static int letter(const uint8_t *s) {
    int more = *s < 0x80 ? 0 : *s >= 0xc2 && *s < 0xe0 ? 1 : *s >= 0xe0 && *s < 0xf0 ? 2 : *s >= 0xf0 && *s < 0xf5 ? 3 : -1;
    for (int n = 1; n <= more; n++)
        if (s[n] >> 6 != 2) return 0;
    /* None is written longer than it must be, is half of one, or lies beyond the last. */
    int wrong = (*s == 0xe0 && s[1] < 0xa0) || (*s == 0xed && s[1] > 0x9f) || (*s == 0xf0 && s[1] < 0x90);
    return wrong || (*s == 0xf4 && s[1] > 0x8f) ? 0 : more + 1;
}

/* The end of the text in quotes at s; NULL if it is none, or has half of a letter. */
static const char *text_end(const char *s) {
    int size;
    for (s++; *s != '"'; s += size) {
        long word = escaped(s), next = word < 0 ? -1 : escaped(s + 6);
        size = letter((const uint8_t *)s);
        if ((uint8_t)*s < ' ' || !size) return NULL;
        if (*s != '\\') continue;
        size = 2;
        if (word < 0 && (!s[1] || !strchr("\"\\/bfnrt", s[1]))) return NULL;
        if (word < 0) continue;
        size = word >= 0xd800 && word < 0xdc00 ? 12 : 6; /* a letter of two words */
        if ((word >= 0xdc00 && word < 0xe000) || (size == 12 && (next < 0xdc00 || next >= 0xe000))) return NULL;
    }
    return s + 1;
}

/* The end of the value at s; NULL if it is none. */
static const char *json_end(const char *s, int depth) {
    static const char *space = " \t\r\n", *words[] = {"true", "false", "null"};
    s += strspn(s, space);
    if (*s == '"') return text_end(s);
    if (*s == '{' || *s == '[') {
        char last = *s == '{' ? '}' : ']';
        s += 1 + strspn(s + 1, space);
        if (*s == last) return s + 1;
        while (depth < 500) {
            s += strspn(s, space);
            if (last == '}' && (*s != '"' || !(s = text_end(s)))) return NULL;
            if (last == '}' && *(s += strspn(s, space)) != ':') return NULL;
            if (!(s = json_end(s + (last == '}'), depth + 1))) return NULL;
            s += strspn(s, space);
            if (*s == last) return s + 1;
            if (*s++ != ',') return NULL;
        }
        return NULL;
    }
    for (int n = 0; n < 3; n++)
        if (!strncmp(s, words[n], strlen(words[n]))) return s + strlen(words[n]);
    s += *s == '-';
    size_t digits = strspn(s, DIGITS);
    if (!digits || (*s == '0' && digits > 1)) return NULL;
    s += digits;
    if (*s == '.') {
        if (!(digits = strspn(s + 1, DIGITS))) return NULL;
        s += 1 + digits;
    }
    if (*s == 'e' || *s == 'E') {
        s += 1 + (s[1] == '+' || s[1] == '-');
        if (!(digits = strspn(s, DIGITS))) return NULL;
        s += digits;
    }
    return s;
}

/* Whether all of the text is a value. */
static int is_json(const char *text, size_t length) {
    const char *end = json_end(text, 0);
    return end && end + strspn(end, " \t\r\n") == text + length;
}

static const char *after_space(const char *s) { return s + strspn(s, " \t\r\n,:"); }

static const char *after_value(const char *s) {
    int depth = 0;
    do {
        if (*s == '"')
            for (s++; *s && *s != '"'; s++) s += *s == '\\' && s[1];
        depth += (*s == '{' || *s == '[') - (*s == '}' || *s == ']');
        s += *s != 0;
    } while (*s && (depth > 0 || !strchr(":,}] ", *s)));
    return s;
}

static int is(const char *s, const char *word) {
    return *s == '"' && !strncmp(s + 1, word, strlen(word)) && s[strlen(word) + 1] == '"';
}

/* The value of a key of the object at s, the last one that has it, as other readers of JSON do; empty if there is none. */
static const char *value(const char *s, const char *key) {
    const char *found = "\0"; /* a second byte, since callers look at the one behind a bracket or quote */
    if (*s++ != '{') return found;
    for (s = after_space(s); *s && *s != '}'; s = after_space(after_value(s))) {
        int same = is(s, key);
        s = after_space(after_value(s));
        if (same) found = s;
    }
    return found;
}

/* Whether a number ends at s. */
static int ends(const char *s) { return !*s || strchr(" \t\r\n,]}", *s); }

/* Whether a whole number from least on stands at s, of at most 64 bits. */
static int whole(const char *s, uint64_t least, uint64_t *found) {
    size_t digits = strspn(s, "0123456789");
    *found = 0;
    for (size_t n = 0; n < digits; n++) {
        uint64_t digit = (uint64_t)(s[n] - '0');
        if (*found > (UINT64_MAX - digit) / 10) return 0;
        *found = 10 * *found + digit;
    }
    return digits && ends(s + digits) && *found >= least;
}

static int is_kind(const rule *own, const char *kind) { return !strcmp(own->kind, kind); }

/* Whether a number is between the bounds of a rule. */
static int is_between(uint64_t n, const rule *own) {
    return n >= strtoull(own->least, NULL, 10) && n <= strtoull(own->most, NULL, 10);
}

/* Whether the value at s is as a rule has it. */
static int fits(const char *s, const rule *own) {
    uint64_t n;
    if (own->optional == 2 && *s == 'n') return 1;
    if (is_kind(own, "text")) return *s == '"';
    if (is_kind(own, "truth")) return *s == 't' || *s == 'f';
    if (is_kind(own, "table")) return *s == '{';
    if (is_kind(own, "whole")) return whole(s, 0, &n) && is_between(n, own);
    if (is_kind(own, "hex")) {
        size_t digits = strtoul(own->most, NULL, 10);
        return *s == '"' && strspn(s + 1, DIGITS "abcdef") == digits && s[digits + 1] == '"';
    }
    if (is_kind(own, "name")) {
        for (const char *name = own->names; *name; name = strchr(name, ' ') + 1) {
            size_t size = strcspn(name, " ");
            if (*s == '"' && !strncmp(s + 1, name, size) && s[size + 1] == '"') return 1;
        }
        return 0;
    }
    if (is_kind(own, "real")) {
        if (*s != '-' && (*s < '0' || *s > '9')) return 0;
        double real = strtod(s, NULL);
        if (own->longest && ends(s + 1 + strspn(s + 1, DIGITS)) && fabs(real) >= ldexp(1, own->longest)) return 0;
        return real >= strtod(own->least, NULL) && real <= strtod(own->most, NULL);
    }
    int count = 0; /* of a list */
    if (*s != '[') return 0;
    for (s = after_space(s + 1); *s != ']' && count <= own->longest; s = after_space(after_value(s)), count++)
        if (is_kind(own, "wholes") && (!whole(s, 0, &n) || !is_between(n, own))) return 0;
    return count <= own->longest;
}

/* 0 where the table at s keeps the rules; else -1, and why in "error": "where" stands before the key, "of" behind it. */
static int check(char *error, size_t room, const char *s, const rule *own, const char *where, const char *of) {
    for (; own->key; own++) {
        const char *at = value(s, own->key);
        if (*at ? fits(at, own) : own->optional) continue;
        if (*at) snprintf(error, room, "%s%s in the %s must %s", where, own->key, of, own->words);
        else if (*where) snprintf(error, room, "%.*s in the %s must have %s", (int)strlen(where) - 1, where, of, own->key);
        else snprintf(error, room, "%s must have %s", of, own->key);
        return -1;
    }
    return 0;
}

#endif
