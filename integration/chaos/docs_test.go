package chaos

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestGuaranteesListTheFaults compares the page with the code: both its tables
// list the same faults, in the same order.
func TestGuaranteesListTheFaults(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/design/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, wantCells []string
	for _, f := range faults() {
		want = append(want, f.name)
		for _, k := range f.allKinds() {
			wantCells = append(wantCells, f.name+"/"+k.String())
		}
	}
	var listed, measured []string
	isOurs := false
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "|") {
			isOurs = false
		}
		isOurs = isOurs || strings.HasPrefix(line, "| fault |")
		if !isOurs {
			continue
		}
		columns := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range columns {
			columns[i] = strings.TrimSpace(columns[i])
		}
		switch {
		case columns[0] == "fault" || strings.HasPrefix(line, "|-"):
		case len(columns) == 2:
			listed = append(listed, columns[0])
		default:
			measured = append(measured, columns[0]+"/"+columns[1]+"/"+columns[2])
		}
	}
	if !slices.Equal(listed, want) {
		t.Errorf("the page lists\n%q\nand the code has\n%q", listed, want)
	}
	if !slices.Equal(measured, wantCells) {
		t.Errorf("the page has figures for\n%q\nand the code runs\n%q", measured, wantCells)
	}
	if !strings.Contains(string(text), tableHead) {
		t.Error("the head of the table is not that of the code")
	}
}
