//! `ncclMemAlloc` for the memory of a device.

use crate::driver::{self, Context, Driver};
use crate::error::Result;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Addresses, and the contexts that they belong to.
static ALLOCATIONS: Mutex<BTreeMap<usize, Context>> = Mutex::new(BTreeMap::new());

/// `bytes` of memory of the device that the calling thread uses, from the driver's page size on aligned; none if it uses no device.
pub fn allocate_on_device(bytes: usize) -> Result<Option<usize>> {
    let Some(driver) = driver::of_process()? else { return Ok(None) };
    let Some(context) = driver.current()? else { return Ok(None) };
    let address = within(driver, context, || driver.allocate(bytes))?;
    ALLOCATIONS.lock().insert(address, context);
    Ok(Some(address))
}

/// Gives memory of [`allocate_on_device`] back; false if it is not such.
pub fn free_on_device(address: usize) -> Result<bool> {
    let Some(context) = ALLOCATIONS.lock().remove(&address) else { return Ok(false) };
    let Some(driver) = driver::of_process()? else { return Ok(false) };
    within(driver, context, || driver.free(address)).map(|()| true)
}

fn within<T>(driver: &dyn Driver, context: Context, body: impl FnOnce() -> Result<T>) -> Result<T> {
    driver.push(context)?;
    let outcome = body();
    driver.pop()?;
    outcome
}
