/* module.c: the driver as XIO loads it.
 *
 * What it is:   the module that the loader of Globus looks for, and the table of the driver's functions. `motet` is a transport driver: it is at the bottom
 *               of a stack, in the place of `tcp`.
 * What it isn't: a reason for a failure of the program. Where the engine is of another version or disabled, the driver moves bytes by TCP.
 *
 * Fork safety: the engine's fork handlers are registered once for each process, and the object stays loaded (-z nodelete). */
#include "driver.h"

#include <pthread.h>

static int activate(void);
static int deactivate(void);

static globus_version_t version = { MOTET_VERSION_MAJOR, MOTET_VERSION_MINOR, 0, 0 };

/* The loader finds this symbol by the driver's name. */
__attribute__((visibility("default"))) GlobusXIODefineModule(motet) = {
    "globus_xio_motet", activate, deactivate, NULL, NULL, &version,
    NULL,
};

static globus_result_t make_driver(globus_xio_driver_t *out)
{
    GlobusXIOName(make_driver);
    globus_xio_driver_t driver;
    globus_result_t result = globus_xio_driver_init(&driver, "motet", NULL);
    if (result != GLOBUS_SUCCESS) return GlobusXIOErrorWrapFailed("globus_xio_driver_init", result);
    globus_xio_driver_set_transport(driver, handle_open, handle_close, handle_read, handle_write, handle_control);
    globus_xio_driver_set_server(driver, server_init, server_accept, server_destroy, server_control, link_control, link_destroy);
    globus_xio_driver_set_attr(driver, attributes_init, attributes_copy, attributes_control, attributes_destroy);
    globus_xio_driver_string_cntl_set_table(driver, attribute_options);
    globus_xio_driver_handle_string_cntl_set_table(driver, handle_options);
    *out = driver;
    return GLOBUS_SUCCESS;
}

static void destroy_driver(globus_xio_driver_t driver) { globus_xio_driver_destroy(driver); }

static GlobusXIODefineDriver(motet, make_driver, destroy_driver);

static void register_fork_handlers(void) { pthread_atfork(motet_fork_prepare, motet_fork_parent, motet_fork_child); }

static int activate(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int result = globus_module_activate(GLOBUS_XIO_SYSTEM_MODULE);
    if (result != GLOBUS_SUCCESS) return result;
    pthread_once(&once, register_fork_handlers);
    attributes_read_environment();
    return GlobusXIORegisterDriver(motet);
}

static int deactivate(void)
{
    GlobusXIOUnRegisterDriver(motet);
    return globus_module_deactivate(GLOBUS_XIO_SYSTEM_MODULE);
}

__attribute__((destructor)) static void at_exit(void) { motet_before_exit(); }
