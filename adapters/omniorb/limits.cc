/* limits.cc: the largest message that the ORB sends and takes.
 *
 * What it is:   omniORB's limit of 2 MiB a message, raised where neither the program nor its user has set one (giopMaxMsgSize in a file,
 *               the environment, the arguments or the call of ORB_init).
 * What it isn't: memory. What a peer claims is allocated when it is unmarshalled, and touched as it comes. */
#include <orbOptions.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <strings.h>

#include "adapter.h"
#include "memory.h"

namespace motet_omniorb {

static const char *const OPTION = "giopMaxMsgSize";

/* The default of MOTET_OMNIORB_MESSAGE (crates/motet-config). */
static constexpr unsigned long long MESSAGE = 256ull << 20;

/* "256MiB", as every size in Motet's settings; 0 for nothing that can be understood, too. */
static unsigned long long bytes(const char *text)
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
    const size_t length = std::strlen(OPTION);
    for (CORBA::ULong i = 0; i < given->length(); i++)
        if (!std::strncmp(given.in()[i], OPTION, length) && given.in()[i][length] == ' ') return true;
    return false;
}

/* The shim calls this when the ORB is initialised, with the settings as the process was started with them, or null. */
extern "C" __attribute__((visibility("default"))) void motet_omniorb_initialised(const char *message, const char *huge)
{
    unsigned long long wanted = message && *message ? bytes(message) : MESSAGE;
    wanted = std::min<unsigned long long>(wanted, 0xffffffff);
    if (wanted > omni::orbParameters::giopMaxMsgSize && !is_set()) omni::orbParameters::giopMaxMsgSize = (CORBA::ULong)wanted;
    Arriving::asks = !huge || strcasecmp(huge, "off") != 0;
}

} // namespace motet_omniorb
