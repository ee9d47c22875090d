//! Which instructions the kernels may use.

use std::sync::OnceLock;

/// One way to compute. All give the same bits; they differ in speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// What the compilation target guarantees: SSE2 on x86-64, NEON on AArch64.
    Portable,
    /// AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same with FP16, BF16, VBMI and GFNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Fp16,
}

impl Path {
    /// The paths that this CPU has, slowest first. Never empty.
    pub fn available() -> &'static [Self] {
        static AVAILABLE: OnceLock<Vec<Path>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            #[allow(unused_mut, reason = "grows on x86-64 only")]
            let mut paths = vec![Self::Portable];
            #[cfg(target_arch = "x86_64")]
            {
                let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
                if avx2 {
                    paths.push(Self::Avx2);
                }
                let avx512 = avx2
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl");
                if avx512 {
                    paths.push(Self::Avx512);
                }
                if avx512
                    && is_x86_feature_detected!("avx512fp16")
                    && is_x86_feature_detected!("avx512bf16")
                    && is_x86_feature_detected!("avx512vbmi")
                    && is_x86_feature_detected!("gfni")
                {
                    paths.push(Self::Avx512Fp16);
                }
            }
            paths
        })
    }

    /// The fastest path that this CPU has.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::Portable)
    }
}
