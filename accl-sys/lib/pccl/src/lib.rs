extern crate accl_sys;
