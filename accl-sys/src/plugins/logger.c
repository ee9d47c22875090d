/* The function that plugins call to write to the log. It takes any number of arguments, which Rust cannot define: it puts them into a
 * text, and hands that to the one that Rust has given. */
#include <stdarg.h>
#include <stdio.h>

typedef void (*accl_sink)(int level, unsigned long subsystems, const char *file, int line, const char *text);

static accl_sink sink;

/* Before any plugin is loaded. */
void accl_plugin_logs_to(accl_sink given) { sink = given; }

void accl_plugin_log(int level, unsigned long subsystems, const char *file, int line, const char *format, ...) {
  char text[1024];
  va_list arguments;
  if (!sink || !format) return;
  va_start(arguments, format);
  if (vsnprintf(text, sizeof text, format, arguments) < 0) text[0] = '\0';
  va_end(arguments);
  sink(level, subsystems, file, line, text);
}
