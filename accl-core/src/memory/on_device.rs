//! `ncclMemAlloc` for the memory of a device.

use crate::config;
use crate::driver::{self, Context, Driver};
use crate::error::Result;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Addresses, and what they belong to.
static ALLOCATIONS: Mutex<BTreeMap<usize, (&'static dyn Driver, Context)>> = Mutex::new(BTreeMap::new());

/// `bytes` of memory of the device that the calling thread uses, aligned as the driver does it; none if it uses no device.
pub fn allocate_on_device(bytes: usize, wanted: &config::Driver) -> Result<Option<usize>> {
    let Some(driver) = driver::of_process(wanted)? else { return Ok(None) };
    let Some(context) = driver.current()? else { return Ok(None) };
    let address = driver::within(driver, context, || driver.allocate(bytes))?;
    ALLOCATIONS.lock().insert(address, (driver, context));
    Ok(Some(address))
}

/// Gives memory of [`allocate_on_device`] back; false if it is not such.
pub fn free_on_device(address: usize) -> Result<bool> {
    let Some((driver, context)) = ALLOCATIONS.lock().remove(&address) else { return Ok(false) };
    driver::within(driver, context, || driver.free(address)).map(|()| true)
}
