fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libaccl.so");
}
