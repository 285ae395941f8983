/* corba_data.h: the data of the calls of corba.cc, with one set of functions for all sequence types and one for strings. */
#ifndef CORBA_DATA_H
#define CORBA_DATA_H

#include "corba.hh"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

using motet_bench::Mixed;
using motet_bench::Peer;
using Count = CORBA::ULong;
using Key = CORBA::ULong;

// ---- elements -------------------------------------------------------------------------------------------------------------

/// Element `i` of the data of `key`. Neighbours differ, and so do the data of two keys.
template <class T> T made(Count i, Key key);
template <> inline CORBA::Long made(Count i, Key key) { return (CORBA::Long)((i + key) * 2654435761u); }
template <> inline CORBA::Double made(Count i, Key key) { return made<CORBA::Long>(i, key) / 3.0; }
template <> inline CORBA::Octet made(Count i, Key key) { return (CORBA::Octet)(made<CORBA::Long>(i, key) >> 13); }
template <> inline char made(Count i, Key key) { return (char)(' ' + made<CORBA::Octet>(i, key) % 95); }
template <> inline Mixed made(Count i, Key key) { return {made<CORBA::Long>(i, key), made<CORBA::Double>(i, key + 1), made<CORBA::Octet>(i, key + 2)}; }

template <class T> bool same(const T &a, const T &b) { return a == b; }
template <> inline bool same(const Mixed &a, const Mixed &b) { return a.number == b.number && a.value == b.value && a.mark == b.mark; }

/// Adds an element to a checksum that depends on the order.
template <class T> uint64_t sum(uint64_t before, const T &value) { return (before ^ (uint64_t)(int64_t)value) * 0x100000001b3u + 1; }
template <> inline uint64_t sum(uint64_t before, const Mixed &m) { return sum(sum(sum(before, m.number), m.value), m.mark); }

template <class T> uint64_t checksum(const T *from, Count count)
{
    uint64_t all = 1;
    for (Count i = 0; i < count; i++) all = sum(all, from[i]);
    return all;
}

/// The data of a key, kept for the next call of this thread, so that an answer costs the server only the work of the ORB.
template <class T> T *prepared(Count count, Key key)
{
    thread_local std::vector<T> kept;
    thread_local Key of;
    if (kept.size() != count + 1 || of != key) {
        kept.resize(count + 1); // the terminator of a string
        for (Count i = 0; i < count; i++) kept[i] = made<T>(i, key);
        of = key;
    }
    return kept.data();
}

// ---- types ----------------------------------------------------------------------------------------------------------------
//
// What the C++ mapping allows (and omniORB 4.2 does) with the memory that data arrive in:
//   fresh   always at the server, `in` and `inout`: the skeleton owns a new sequence for each call. At the caller for `out`: the stub
//           makes a new sequence, which the caller must delete. Strings are new everywhere.
//   warm    at the caller for `inout`: the stub reads into the caller's own sequence, whose buffer stays when it is long enough.
//           An empty sequence with room, handed in as `inout`, is therefore the warm form of `out`; the calls named `refill` do that.
//           It must not own the room: omniORB's sequences free what they own when their length becomes 0.

/// A sequence type: its element, and its calls.
template <class Sequence, class Element, class Var, class Out> struct Of {
    using Data = Sequence;
    using T = Element;
    using Received = Var;
    static constexpr bool can_be_warm = true;
    CORBA::ULongLong (motet_bench::_objref_Peer::*in)(Key, const Sequence &);
    void (motet_bench::_objref_Peer::*out)(Key, Count, Out);
    void (motet_bench::_objref_Peer::*inout)(Key, Count, Sequence &);

    static void make(Data &data, Count count, Key key)
    {
        data.length(count);
        std::copy_n(prepared<T>(count, key), count, data.get_buffer());
    }
    static void empty(Data &data, std::vector<T> &room) { data.replace(room.size(), 0, room.data(), false); }
    static const T *begin(const Data &data) { return data.get_buffer(); }
    static Count length(const Data &data) { return data.length(); }
    static void encode(const Data &data, cdrStream &into) { data >>= into; }
    static void decode(Data &data, cdrStream &from) { data <<= from; }
};

/// Strings.
struct Text {
    using Data = CORBA::String_var;
    using T = char;
    using Received = CORBA::String_var;
    static constexpr bool can_be_warm = false;
    CORBA::ULongLong (motet_bench::_objref_Peer::*in)(Key, const char *);
    void (motet_bench::_objref_Peer::*out)(Key, Count, CORBA::String_out);
    void (motet_bench::_objref_Peer::*inout)(Key, Count, CORBA::String_INOUT_arg);

    static char *fresh(Count count, Key key)
    {
        char *text = CORBA::string_alloc(count);
        std::copy_n(prepared<T>(count, key), count, text);
        text[count] = 0;
        return text;
    }
    static void make(Data &data, Count count, Key key) { data = fresh(count, key); }
    static void empty(Data &data, std::vector<T> &) { data = CORBA::string_dup(""); }
    static const T *begin(const Data &data) { return data.in(); }
    static Count length(const Data &data) { return std::strlen(data.in()); }
    static void encode(const Data &data, cdrStream &into) { into.marshalString(data.in()); }
    static void decode(Data &data, cdrStream &from) { data = from.unmarshalString(); }
};

#define MOTET_CALLS(NAME) &motet_bench::_objref_Peer::in_##NAME, &motet_bench::_objref_Peer::out_##NAME, &motet_bench::_objref_Peer::inout_##NAME

/// Calls `what(name, type)` for each type.
template <class What> void for_each_type(What what)
{
    using namespace motet_bench;
    what("long", Of<Longs, CORBA::Long, Longs_var, Longs_out>{MOTET_CALLS(long)});
    what("double", Of<Doubles, CORBA::Double, Doubles_var, Doubles_out>{MOTET_CALLS(double)});
    what("octet", Of<Octets, CORBA::Octet, Octets_var, Octets_out>{MOTET_CALLS(octet)});
    what("struct", Of<Structs, Mixed, Structs_var, Structs_out>{MOTET_CALLS(struct)});
    what("string", Text{MOTET_CALLS(string)});
}

#endif
