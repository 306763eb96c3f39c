package aggregates

import (
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestSteps: the table of steps that the package's comment shows.
func TestSteps(t *testing.T) {
	t.Parallel()
	causes := []Cause{Parked, Finished, written, held, Free, occupied, read}
	for from, want := range map[step][]step{
		stepWaiting: {stepCheck, stepNext, stepWaiting, stepWaiting, stepReady, stepWaiting, stepWaiting},
		stepCheck:   {stepCheck, stepNext, stepCheck, stepCheck, stepReady, stepWaiting, stepWaiting},
		stepNext:    {stepNext, stepNext, stepReady, stepCheck, stepNext, stepNext, stepWaiting},
		stepReady:   {stepReady, stepNext, stepReady, stepCheck, stepReady, stepReady, stepWaiting},
	} {
		for i, c := range causes {
			if got := from.after(c); got != want[i] {
				t.Errorf("step %d, cause %d: %d, want %d", from, c, got, want[i])
			}
		}
	}
}
