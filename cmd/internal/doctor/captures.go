package doctor

import (
	"context"
	"fmt"

	"github.com/notifyd/notifyd/cmd/internal/capture"
	"github.com/notifyd/notifyd/internal/cli"
)

// captureChecks returns the check of captured tables, or none if no table is captured.
func captureChecks(ctx context.Context, e *exam) []check {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	list, err := capture.List(ctx, e.conn, e.Schema)
	if err == nil && len(list) == 0 {
		return nil
	}
	return []check{{"captures", func(context.Context, *exam) (string, []Finding, error) { return captureFindings(list, err) }, true}}
}

func captureFindings(list []capture.State, err error) (string, []Finding, error) {
	if err != nil {
		return "", nil, err
	}
	var findings []Finding
	for i := range list {
		for _, p := range list[i].Problems {
			findings = append(findings, found(Severity(p.Level), p.Cure, "%s", p.Text))
		}
	}
	return fmt.Sprintf("Each capture writes the events that it describes: %s.", cli.Count(len(list), "table")), findings, nil
}
