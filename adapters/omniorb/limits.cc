/* limits.cc: the largest GIOP message that the ORB sends and accepts.
 *
 * What it is:   raises omniORB's default of 2 MiB, unless the program or its user has set giopMaxMsgSize (in a file, the environment, the
 *               arguments or the call of ORB_init).
 * What it isn't: a reservation of memory. The memory for a message is allocated when it is unmarshalled, and touched as bytes arrive. */
#include <orbOptions.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <strings.h>

#include "adapter.h"
#include "receive_buffer.h"

namespace motet_omniorb {

static const char *const OMNIORB_OPTION = "giopMaxMsgSize";

/* The default of MOTET_OMNIORB_MESSAGE (crates/motet-config). */
static constexpr unsigned long long DEFAULT_MESSAGE_BYTES = 256ull << 20;

/* Parses a size in the format of Motet's settings, such as "256MiB". 0 for text that is not understood. */
static unsigned long long parse_bytes(const char *text)
{
    static const struct { const char *unit; int shift; } UNITS[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    char *unit;
    unsigned long long number = std::strtoull(text, &unit, 10);
    for (const auto &known : UNITS)
        if (!std::strcmp(unit, known.unit) && number <= (1ull << 40)) return number << known.shift;
    return 0;
}

static bool is_set()
{
    omni::orbOptions::sequenceString_var given = omni::orbOptions::singleton().dumpSpecified();
    const size_t length = std::strlen(OMNIORB_OPTION);
    for (CORBA::ULong i = 0; i < given->length(); i++)
        if (!std::strncmp(given.in()[i], OMNIORB_OPTION, length) && given.in()[i][length] == ' ') return true;
    return false;
}

/* Called by preload.c after the ORB was initialised, with settings as the process was started with them, or null. */
extern "C" __attribute__((visibility("default"))) void motet_omniorb_initialised(const char *message, const char *huge)
{
    unsigned long long wanted = message && *message ? parse_bytes(message) : DEFAULT_MESSAGE_BYTES;
    wanted = std::min<unsigned long long>(wanted, 0xffffffff);
    if (wanted > omni::orbParameters::giopMaxMsgSize && !is_set()) omni::orbParameters::giopMaxMsgSize = (CORBA::ULong)wanted;
    ReceiveBuffer::huge_pages = !huge || strcasecmp(huge, "off") != 0;
}

} // namespace motet_omniorb
