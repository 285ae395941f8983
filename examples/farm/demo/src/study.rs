//! What is studied: how far a driven pendulum swings, by its damping. Any other function of a parameter would do.

/// The parameter of a point.
pub fn parameter(point: u64, points: u64) -> f64 {
    0.05 + 1.95 * point as f64 / points as f64
}

/// The largest angle of the pendulum with this damping, after its start; by the midpoint rule.
pub fn swing(damping: f64) -> f64 {
    const STEP: f64 = 0.001;
    let (mut angle, mut speed, mut largest) = (0.1f64, 0.0f64, 0.0f64);
    for step in 0..40_000 {
        let force = |angle: f64, speed: f64, time: f64| (0.66 * time).cos() - damping * speed - angle.sin();
        let time = f64::from(step) * STEP;
        let half = speed + 0.5 * STEP * force(angle, speed, time);
        let middle = angle + 0.5 * STEP * speed;
        speed += STEP * force(middle, half, time + 0.5 * STEP);
        angle += STEP * half;
        if step > 20_000 {
            largest = largest.max(angle.abs());
        }
    }
    largest
}
