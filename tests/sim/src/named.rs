//! Kernels that are known by their name, in place of machine code: PyTorch's fill.

use crate::error::{Code, Outcome};
use crate::memory::{self, Access};
use crate::raw;

/// A kernel that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// Fills contiguous elements of so many bytes: arguments are the count, the value and a pointer.
    Fill { element_bytes: u32 },
}

/// Bytes of an element, by the mangled name of its type.
const TYPES: [(&str, u32); 14] = [
    ("f", 4),
    ("d", 8),
    ("i", 4),
    ("l", 8),
    ("s", 2),
    ("h", 1),
    ("a", 1),
    ("b", 1),
    ("N3c104HalfE", 2),
    ("N3c108BFloat16E", 2),
    ("N3c107complexIfEE", 8),
    ("j", 4),
    ("m", 8),
    ("t", 2),
];

impl Named {
    /// The kernel of a mangled name.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("_ZN2at6native29vectorized_elementwise_kernelILi")?;
        let (_, rest) = rest.split_once("ENS0_11FillFunctorI")?;
        let (kind, _) = rest.split_once("EESt5arrayIPcLm1EE")?;
        let (_, element_bytes) = TYPES.iter().find(|(mangled, _)| *mangled == kind)?;
        Some(Self::Fill { element_bytes: *element_bytes })
    }

    /// Offset and size of each parameter.
    pub(crate) fn parameters(self) -> &'static [(u32, u32)] {
        match self {
            Self::Fill { element_bytes: 1 } => &[(0, 4), (4, 1), (8, 8)],
            Self::Fill { element_bytes: 2 } => &[(0, 4), (4, 2), (8, 8)],
            Self::Fill { element_bytes: 4 } => &[(0, 4), (4, 4), (8, 8)],
            Self::Fill { .. } => &[(0, 4), (8, 8), (16, 8)],
        }
    }

    pub(crate) fn run(self, packed: &[u8]) -> Outcome {
        let Self::Fill { element_bytes } = self;
        let parameters = self.parameters();
        let at = |index: usize| parameters[index].0 as usize;
        let count = u64::from(u32::from_ne_bytes(packed[..4].try_into().unwrap_or_default()));
        let to = u64::from_ne_bytes(packed[at(2)..at(2) + 8].try_into().unwrap_or_default());
        let width = u64::from(element_bytes);
        memory::check(to, count * width, Access::ReadWrite)
            .and_then(|range| range.ok_or(Code::ILLEGAL_ADDRESS))
            .map_err(|_| Code::ILLEGAL_ADDRESS)?;
        let value = &packed[at(1)..at(1) + element_bytes as usize];
        for index in 0..count {
            raw::copy(to + index * width, value.as_ptr() as u64, width);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_are_known_by_their_type() {
        let name = |kind: &str| {
            format!(
                "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorI{kind}EESt5arrayIPcLm1EEEEviT0_T1_"
            )
        };
        assert_eq!(Named::new(&name("f")), Some(Named::Fill { element_bytes: 4 }));
        assert_eq!(Named::new(&name("N3c108BFloat16E")), Some(Named::Fill { element_bytes: 2 }));
        assert_eq!(Named::new(&name("3foo")), None);
        assert_eq!(Named::new("_Z3addPf"), None);
    }
}
