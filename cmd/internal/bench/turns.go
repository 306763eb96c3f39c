package bench

import "context"

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
