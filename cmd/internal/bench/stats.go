package bench

import (
	"context"
	"math"
	"slices"
	"time"
)

// Percentile returns the smallest value that at least the share p of all values does not exceed, or 0 without values.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	// The subtraction corrects rounding: 0.9*10 is above 9.
	i := int(math.Ceil(float64(len(sorted))*p-1e-9)) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// Median returns the middle value, or the mean of the two in the middle.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// Ratio returns a/b, or 0 if b is 0.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// round rounds to a number of decimals: more would suggest false precision.
func round(v float64, decimals int) float64 {
	scale := math.Pow10(decimals)
	return math.Round(v*scale) / scale
}

// leastRounds is the smallest number of rounds for a median, however short the run.
const leastRounds = 3

// inTurns measures each scenario in each round. Each round begins with the next scenario, so that slow changes on the
// machine affect all scenarios equally. It returns the measurements of each scenario, in the order of the rounds.
func inTurns[S, M any](ctx context.Context, rounds int, scenarios []S, measure func(context.Context, S) (M, error)) ([][]M, error) {
	took := make([][]M, len(scenarios))
	for i := range rounds {
		for j := range scenarios {
			which := (i + j) % len(scenarios)
			one, err := measure(ctx, scenarios[which])
			if err != nil {
				return took, err
			}
			took[which] = append(took[which], one)
		}
	}
	return took, nil
}

// medianOf returns the median of a figure over the rounds.
func medianOf[M any](rounds []M, figure func(M) float64) float64 {
	all := make([]float64, len(rounds))
	for i, one := range rounds {
		all[i] = figure(one)
	}
	return Median(all)
}
