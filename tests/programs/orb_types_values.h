// The values that orb_types.cc sends: for every type of orb_types.idl the smallest and the greatest, empty and large ones.
//
// Narrow strings are ASCII: what else they may hold depends on the code sets of both processes. Wide ones are not, but omniORB 4.2 has no
// characters beyond 16 bits. And it copies a `fixed` by construction without its limits, and then cannot send it: see copy().
#pragma once
#include "orb_types.hh"

#include <limits>
#include <string>
#include <vector>

namespace values {
using namespace motet_types;

constexpr CORBA::ULong LARGE = 600 * 1000; // bytes: in, out and inout together stay below omniORB's 2 MiB for a message
static const wchar_t *const WIDE = L"Gr\u00fc\u00dfe, \u039a\u03cc\u03c3\u03bc\u03b5, \u6f22\u5b57";

template <class T> constexpr T least() { return std::numeric_limits<T>::lowest(); }
template <class T> constexpr T most() { return std::numeric_limits<T>::max(); }

/// A copy that can be sent, whatever it contains.
template <class T> T *copy(const T &value)
{
    T *made = new T;
    *made = value;
    return made;
}

/// A sequence of these elements.
template <class Sequence, class Element> Sequence sequence(const std::vector<Element> &elements)
{
    Sequence made;
    made.length(elements.size());
    for (CORBA::ULong i = 0; i < made.length(); i++) made[i] = elements[i];
    return made;
}

/// A sequence of LARGE bytes; element i is make(i).
template <class Sequence, class Make> Sequence large(size_t element, Make make)
{
    Sequence made;
    made.length(LARGE / element);
    for (CORBA::ULong i = 0; i < made.length(); i++) made[i] = make(i);
    return made;
}

inline Particle particle(CORBA::Long id)
{
    Particle made;
    made.id = id;
    for (int i = 0; i < 3; i++) made.at[i] = id / 7.0 + i;
    made.fixed_in_place = id % 2;
    made.tag = CORBA::Octet(id);
    return made;
}

inline std::vector<Octets> octets()
{
    return {{}, sequence<Octets>(std::vector<int>{0, 1, 127, 128, 255}), large<Octets>(1, [](CORBA::ULong i) { return CORBA::Octet(i * 7); })};
}

inline std::vector<Longs> longs()
{
    using L = CORBA::Long;
    return {{}, sequence<Longs>(std::vector<L>{least<L>(), -1, 0, 1, most<L>()}), large<Longs>(sizeof(L), [](CORBA::ULong i) { return L(i * 2654435761u); })};
}

inline std::vector<Doubles> doubles()
{
    using limits = std::numeric_limits<double>;
    std::vector<double> special{limits::lowest(), -0.0, 0.0, limits::denorm_min(), limits::min(), limits::max(), limits::infinity(), -limits::infinity()};
    return {{}, sequence<Doubles>(special), large<Doubles>(sizeof(double), [](CORBA::ULong i) { return i / 3.0; })};
}

inline std::vector<Few> few() { return {{}, sequence<Few>(std::vector<double>{1.5, -2, 0, 4e300})}; }

inline std::vector<Names> names()
{
    std::string thousand(100000, 'n');
    return {{}, sequence<Names>(std::vector<const char *>{"", "one", "", thousand.c_str()})};
}

inline std::vector<Rows> rows() { return {{}, sequence<Rows>(longs())}; }

inline std::vector<Particles> particles()
{
    return {{}, sequence<Particles>(std::vector<Particle>{particle(-1)}), large<Particles>(sizeof(Particle), [](CORBA::ULong i) { return particle(i); })};
}

inline std::vector<Choice> choices()
{
    std::vector<Choice> made(3);
    made[0].number(least<CORBA::Long>());
    made[1].several(names()[1]);
    made[2].one(particle(5));
    return made;
}

inline std::vector<Sign> signs()
{
    std::vector<Sign> made(3);
    made[0].reason("");
    made[1].reason("with a reason");
    made[2]._default();
    return made;
}

/// Every number is the least or the greatest of its type.
inline void make_extreme(Everything &v, bool great)
{
    v.b = great;
    v.o = great ? 255 : 0;
    v.c = great ? '~' : 'a';
    v.w = great ? L'\u6f22' : L'\u00e9';
    v.s = great ? most<CORBA::Short>() : least<CORBA::Short>();
    v.us = great ? most<CORBA::UShort>() : 0;
    v.l = great ? most<CORBA::Long>() : least<CORBA::Long>();
    v.ul = great ? most<CORBA::ULong>() : 0;
    v.ll = great ? most<CORBA::LongLong>() : least<CORBA::LongLong>();
    v.ull = great ? most<CORBA::ULongLong>() : 0;
    v.f = great ? most<float>() : std::numeric_limits<float>::denorm_min();
    v.d = great ? most<double>() : least<double>();
    v.text = great ? "all that \"ASCII\" has: ~!@#$%^&*()" : "";
    v.wide = great ? WIDE : L"";
    v.shade = great ? blue : red;
    v.name = great ? "eight ch" : "";
    v.cost = great ? "999999.999" : "-999999.999";
    for (int i = 0; i < 6; i++) v.cells[i / 3][i % 3] = great ? i : -i;
    v.one = particle(great ? most<CORBA::Long>() : least<CORBA::Long>());
}

inline std::vector<Everything> everything()
{
    std::vector<Everything> made(2);
    make_extreme(made[0], false);
    make_extreme(made[1], true);
    return made;
}

/// The caller owns it, and may keep `next`.
inline Node *node(CORBA::Long value, Node *next)
{
    Node *made = new OBV_motet_types::Node(value, nullptr);
    made->next(next); // takes a reference; the constructor would take the caller's
    return made;
}

/// A sequence in which two nodes have the same next, one node occurs twice, and one entry is nil.
inline Nodes nodes()
{
    Node_var last = node(most<CORBA::Long>(), nullptr);
    Node_var first = node(1, last);
    Node_var second = node(least<CORBA::Long>(), last);
    Nodes made;
    made.length(5);
    made[0] = first;
    made[1] = second;
    made[2] = first;
    made[3] = last;
    made[4] = static_cast<Node *>(nullptr);
    return made;
}

template <class T> CORBA::Any any(const T &value)
{
    CORBA::Any made;
    made <<= value;
    return made;
}

inline CORBA::Any any(const Everything &value)
{
    CORBA::Any made;
    made <<= copy(value); // which becomes the any's own
    return made;
}

/// Anys of basic types, of types of the IDL, of references, of a type code and of an any. JacORB 3.9 cannot pass on in an any what another
/// ORB reads, or the reverse: value types, exceptions, a bounded string without a name, a fixed with leading zeros. omniORBpy 4.3 receives a
/// wchar as if it were a char, so there is nothing that has one within `to_python`, and returns the type of a recursive value as another.
inline std::vector<CORBA::Any> anys(Echo_ptr echo, bool to_python)
{
    using Any = CORBA::Any;
    CORBA::Fixed price("-123456.789");
    Any bounded = any(Any::from_string("bounded", 8));
    bounded.type(_tc_Short_name);
    Matrix matrix = {{1, 2, 3}, {4, 5, 6}};
    Echoes echoes;
    echoes.length(2);
    echoes[0] = Echo::_duplicate(echo); // and the second is nil: omniORB 4.2 cannot send an any of a nil reference alone
    std::vector<Any> made{
        Any(),
        any(least<CORBA::Short>()), any(most<CORBA::UShort>()), any(least<CORBA::Long>()), any(most<CORBA::ULong>()),
        any(least<CORBA::LongLong>()), any(most<CORBA::ULongLong>()), any(most<float>()), any(least<double>()),
        any(Any::from_boolean(true)), any(Any::from_octet(255)), any(Any::from_char('c')),
        any("a string"), any(""), any(WIDE), bounded, any(Any::from_fixed(price, 9, 3)),
        any(green), any(Matrix_forany(matrix)), any(particle(3)), any(echoes),
        any(CORBA::Object_ptr(echo)), any(echo), any(CORBA::_tc_long), any(_tc_Particle),
    };
    auto add = [&made](const auto &all) { for (const auto &value : all) made.push_back(any(value)); };
    if (!to_python) made.push_back(any(Any::from_wchar(L'\u6f22'))), made.push_back(any(_tc_Everything)), made.push_back(any(_tc_Node)), add(everything());
    add(octets()), add(longs()), add(doubles()), add(few()), add(names()), add(rows()), add(particles()), add(choices()), add(signs());
    made.push_back(any(made.back()));
    return made;
}
}
