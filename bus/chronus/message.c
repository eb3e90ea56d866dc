/* What messages hold: values taken out of a request, one after the other, and put into a reply. */
#include <string.h>

#include "chronus.h"

static void take(struct request *request, void *into, size_t length) {
    if ((size_t)(request->end - request->at) < length) {
        request->bad = 1;
        memset(into, 0, length);
        return;
    }
    memcpy(into, request->at, length);
    request->at += length;
}

uint32_t take_u32(struct request *request) {
    uint32_t value;
    take(request, &value, sizeof value);
    return value;
}

uint64_t take_u64(struct request *request) {
    uint64_t value;
    take(request, &value, sizeof value);
    return value;
}

char *take_string(struct request *request) {
    char *text = request->at;
    char *nul = memchr(text, 0, (size_t)(request->end - text));
    if (!nul) return request->bad = 1, "";
    request->at = nul + 1;
    return text;
}

int put(struct reply *reply, const void *data, size_t length) {
    if (length > sizeof reply->body - reply->length) return 0;
    memcpy(reply->body + reply->length, data, length);
    reply->length += length;
    return 1;
}
