//! The shared library: everything it exports stands in accl_sys.

extern crate accl_sys;
