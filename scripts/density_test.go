package scripts

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var updateDensity = flag.Bool("update-density", false, "write density.txt anew")

const (
	// longFunction is how many lines of a function need a blank line between its steps.
	longFunction = 25
	// wideLine is the number of columns from which a line has to be wrapped. A tab counts as four.
	wideLine = 160
)

var (
	funcBegins   = regexp.MustCompile(`^func .*\{$`)
	operators    = regexp.MustCompile(`&&|\|\|`)
	assignsInIf  = regexp.MustCompile(`^(\} else )?if [^;{]*[^:=!<>]=[^=][^;]*;`)
	manyAssigned = regexp.MustCompile(`^[\w.\[\]*]+(, [\w.\[\]*]+){2,} :?= [^,]+(, [^,]+){2,}$`)
)

// dense returns the places in a Go file that hide the steps of a function, by kind.
func dense(text string) map[string][]int {
	found := make(map[string][]int)
	isInside := false
	begin, blanks := 0, 0
	for i, line := range strings.Split(text, "\n") {
		number := i + 1
		if len([]rune(strings.ReplaceAll(line, "\t", "    "))) > wideLine {
			found["wide"] = append(found["wide"], number)
		}
		if !isInside {
			isInside = funcBegins.MatchString(line)
			begin, blanks = number, 0
			continue
		}
		if line == "}" {
			isInside = false
			if number-begin > longFunction && blanks == 0 {
				found["solid"] = append(found["solid"], begin)
			}
			continue
		}

		line = strings.TrimSpace(line)
		switch {
		case line == "":
			blanks++
			continue
		case strings.HasPrefix(line, "//"):
			continue
		}
		if len(operators.FindAllString(line, -1)) >= 3 {
			found["condition"] = append(found["condition"], number)
		}
		if assignsInIf.MatchString(line) {
			found["assignment-in-if"] = append(found["assignment-in-if"], number)
		}
		if manyAssigned.MatchString(line) {
			found["assignments"] = append(found["assignments"], number)
		}
	}
	return found
}

// TestDensity is a ratchet for paragraphs: no directory has more of these places than density.txt has for it. Tests and
// generated code are not counted.
//
//	solid             a function of 25 lines and more without a blank line
//	condition         three or more operators in one line: name the condition
//	assignment-in-if  an if that assigns, and does not declare
//	assignments       three or more values in one assignment
//	wide              a line of more than 160 columns
//
// A count that has fallen is written down by
//
//	go test ./scripts -run TestDensity -update-density
func TestDensity(t *testing.T) {
	t.Parallel()
	places := make(map[string][]string)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != ".." && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}

		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(text, []byte("\n// Code generated ")) || bytes.HasPrefix(text, []byte("// Code generated ")) {
			return nil
		}
		path = strings.TrimPrefix(filepath.ToSlash(path), "../")
		for kind, lines := range dense(string(text)) {
			key := kind + " " + filepath.ToSlash(filepath.Dir(path))
			for _, line := range lines {
				places[key] = append(places[key], fmt.Sprintf("%s:%d", path, line))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ratchet(t, "density.txt", places, *updateDensity, "-update-density", "dense places", "give the function paragraphs, and the condition a name")
}
