/* attributes.c: the driver's attributes and string options.
 *
 * What it is:   the attributes of XIO's driver `tcp` that concern a socket, with the same commands and the same names in strings
 *               ("port=2811;nodelay=true"), and `tcponly`. They have the same defaults and read the same environment: GLOBUS_TCP_PORT_RANGE and
 *               GLOBUS_TCP_SOURCE_RANGE.
 * What it isn't: all of them: out-of-band data, the file that several programs use to share a range of ports and blocking I/O are not supported. */
#include "driver.h"

struct attributes default_attributes = { .backlog = -1, .restrict_port = GLOBUS_TRUE, .fd = -1 };

globus_xio_string_cntl_table_t attribute_options[] = {
    { "port", GLOBUS_XIO_TCP_SET_SERVICE, globus_xio_string_cntl_string },
    { "listen_range", GLOBUS_XIO_TCP_SET_LISTEN_RANGE, globus_xio_string_cntl_int_int },
    { "iface", GLOBUS_XIO_TCP_SET_INTERFACE, globus_xio_string_cntl_string },
    { "reuse", GLOBUS_XIO_TCP_SET_REUSEADDR, globus_xio_string_cntl_bool },
    { "noipv6", GLOBUS_XIO_TCP_SET_NO_IPV6, globus_xio_string_cntl_bool },
    { "keepalive", GLOBUS_XIO_TCP_SET_KEEPALIVE, globus_xio_string_cntl_bool },
    { "sndbuf", GLOBUS_XIO_TCP_SET_SNDBUF, globus_xio_string_cntl_formated_int },
    { "rcvbuf", GLOBUS_XIO_TCP_SET_RCVBUF, globus_xio_string_cntl_formated_int },
    { "nodelay", GLOBUS_XIO_TCP_SET_NODELAY, globus_xio_string_cntl_bool },
    { "tcponly", MOTET_XIO_SET_TCP_ONLY, globus_xio_string_cntl_bool },
    { NULL, 0, NULL },
};

static bool range_of(const char *variable, int *min, int *max)
{
    const char *text = globus_module_getenv(variable);
    int low, high;
    if (!text || sscanf(text, " %d , %d", &low, &high) != 2 || low < 0 || low > high || high > 65535) return false;
    *min = low;
    *max = high;
    return true;
}

void attributes_read_environment(void)
{
    range_of("GLOBUS_TCP_PORT_RANGE", &default_attributes.listen_min, &default_attributes.listen_max);
    range_of("GLOBUS_TCP_SOURCE_RANGE", &default_attributes.connect_min, &default_attributes.connect_max);
}

globus_result_t attributes_copy(void **out, void *from)
{
    GlobusXIOName(attributes_copy);
    const struct attributes *source = from;
    struct attributes *copy = malloc(sizeof *copy);
    if (!copy) return GlobusXIOErrorMemory("attributes");
    *copy = *source;
    copy->service = source->service ? strdup(source->service) : NULL;
    copy->interface = source->interface ? strdup(source->interface) : NULL;
    if ((source->service && !copy->service) || (source->interface && !copy->interface)) {
        attributes_destroy(copy);
        return GlobusXIOErrorMemory("attributes");
    }
    *out = copy;
    return GLOBUS_SUCCESS;
}

globus_result_t attributes_init(void **out) { return attributes_copy(out, &default_attributes); }

globus_result_t attributes_destroy(void *attributes)
{
    struct attributes *gone = attributes;
    free(gone->service);
    free(gone->interface);
    free(gone);
    return GLOBUS_SUCCESS;
}

static globus_result_t set_text(char **field, const char *text)
{
    GlobusXIOName(set_text);
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy) return GlobusXIOErrorMemory("text");
    free(*field);
    *field = copy;
    return GLOBUS_SUCCESS;
}

static globus_result_t get_text(const char *field, char **out)
{
    *out = NULL;
    return set_text(out, field);
}

globus_result_t attributes_control(void *attributes, int command, va_list arguments)
{
    GlobusXIOName(attributes_control);
    struct attributes *a = attributes;
    switch (command) {
    case GLOBUS_XIO_TCP_SET_SERVICE: return set_text(&a->service, va_arg(arguments, char *));
    case GLOBUS_XIO_TCP_GET_SERVICE: return get_text(a->service, va_arg(arguments, char **));
    case GLOBUS_XIO_TCP_SET_INTERFACE: return set_text(&a->interface, va_arg(arguments, char *));
    case GLOBUS_XIO_TCP_GET_INTERFACE: return get_text(a->interface, va_arg(arguments, char **));
    case GLOBUS_XIO_TCP_SET_LISTEN_RANGE:
        a->listen_min = va_arg(arguments, int);
        a->listen_max = va_arg(arguments, int);
        break;
    case GLOBUS_XIO_TCP_GET_LISTEN_RANGE:
        *va_arg(arguments, int *) = a->listen_min;
        *va_arg(arguments, int *) = a->listen_max;
        break;
    case GLOBUS_XIO_TCP_SET_CONNECT_RANGE:
        a->connect_min = va_arg(arguments, int);
        a->connect_max = va_arg(arguments, int);
        break;
    case GLOBUS_XIO_TCP_GET_CONNECT_RANGE:
        *va_arg(arguments, int *) = a->connect_min;
        *va_arg(arguments, int *) = a->connect_max;
        break;
    case GLOBUS_XIO_TCP_SET_LINGER:
        a->linger = va_arg(arguments, globus_bool_t);
        a->linger_seconds = va_arg(arguments, int);
        break;
    case GLOBUS_XIO_TCP_GET_LINGER:
        *va_arg(arguments, globus_bool_t *) = a->linger;
        *va_arg(arguments, int *) = a->linger_seconds;
        break;
#define FIELD(NAME, type, field)                                                                                                                      \
    case GLOBUS_XIO_TCP_SET_##NAME: a->field = va_arg(arguments, type); break;                                                                         \
    case GLOBUS_XIO_TCP_GET_##NAME: *va_arg(arguments, type *) = a->field; break;
        FIELD(PORT, int, port)
        FIELD(BACKLOG, int, backlog)
        FIELD(HANDLE, globus_xio_system_socket_t, fd)
        FIELD(RESTRICT_PORT, globus_bool_t, restrict_port)
        FIELD(REUSEADDR, globus_bool_t, reuse)
        FIELD(NO_IPV6, globus_bool_t, no_ipv6)
        FIELD(KEEPALIVE, globus_bool_t, keepalive)
        FIELD(SNDBUF, int, send_buffer)
        FIELD(RCVBUF, int, receive_buffer)
        FIELD(NODELAY, globus_bool_t, nodelay)
#undef FIELD
    case MOTET_XIO_SET_TCP_ONLY: a->tcp_only = va_arg(arguments, globus_bool_t); break;
    default: return GlobusXIOErrorInvalidCommand(command);
    }
    return GLOBUS_SUCCESS;
}
