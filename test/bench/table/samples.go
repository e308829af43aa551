package table

import (
	"slices"
	"time"
)

// Samples are durations of the same operation, in the order of their measurement.
type Samples []time.Duration

// Quantile returns the smallest sample that is not below a share q of all samples.
func (s Samples) Quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Row returns a row with a quantile in milliseconds.
func (s Samples) Row(what string, q float64) Row {
	return Row{What: what, Value: ms(s.Quantile(q)), Unit: "ms"}
}

// Of returns a row with the median of samples.
func Of(what, unit string, samples []float64) Row {
	return Row{What: what, Value: Median(samples), Unit: unit}
}

// Minus returns a row with the difference of two rows.
func Minus(what string, a, b Row) Row { return Row{What: what, Value: a.Value - b.Value, Unit: a.Unit} }

// Over returns a row with the ratio of two rows.
func Over(what string, a, b Row) Row { return Row{What: what, Value: a.Value / b.Value} }

// In returns the row in another unit, of which so many are one of the row's.
func (r Row) In(unit string, factor float64) Row {
	r.Unit, r.Value = unit, r.Value*factor
	return r
}

// Most returns the row with a target that the value must not be above.
func (r Row) Most(target float64) Row {
	r.AtMost = target
	return r
}

// Least returns the row with a target that the value must not be below.
func (r Row) Least(target float64) Row {
	r.AtLeast = target
	return r
}

// Median returns the median of at least one number.
func Median(all []float64) float64 {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
