mod acquire;
mod forged;
mod keep;
mod scripted_store;
mod takeover;
