package engine

import (
	"strings"
	"testing"
)

func TestLimitsReportAllMistakesTogether(t *testing.T) {
	t.Parallel()
	if err := DefaultLimits().Validate(); err != nil {
		t.Errorf("the defaults are invalid: %v", err)
	}
	all := Limits{}.Validate().Error()
	for _, want := range []string{"claims in flight", "batch of 0", "batch bytes", "max event bytes", "lock budget", "lease of", "poll interval"} {
		if !strings.Contains(all, want) {
			t.Errorf("no word of %q in:\n%s", want, all)
		}
	}
}
