fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpccl.so.2");
}
