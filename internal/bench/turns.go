package bench

import (
	"context"
	"fmt"
	"io"
)

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
	return median(all)
}

// sheet is a table with a column for each scenario, and a row for each figure.
type sheet[M any] struct {
	grid

	scenarios []M
}

func newSheet[M any](out io.Writer, names []string, scenarios []M) sheet[M] {
	return sheet[M]{newTable(out, "", names...), scenarios}
}

// figure writes a row. An empty cell means unknown. A row of empty cells is left out.
func (s sheet[M]) figure(name string, cell func(M) string) {
	cells, known := make([]string, len(s.scenarios)), false
	for i, one := range s.scenarios {
		if cells[i] = cell(one); cells[i] == "" {
			cells[i] = "-"
		} else {
			known = true
		}
	}
	if known {
		s.row(name, cells...)
	}
}

// fixed writes a row of numbers with a fixed number of decimals.
func (s sheet[M]) fixed(name string, decimals int, value func(M) float64) {
	s.figure(name, func(one M) string { return fmt.Sprintf("%.*f", decimals, value(one)) })
}

// counts writes a row of whole numbers.
func (s sheet[M]) counts(name string, value func(M) float64) {
	s.figure(name, func(one M) string { return number(value(one)) })
}
