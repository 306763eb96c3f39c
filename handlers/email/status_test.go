package email

import (
	"fmt"
	"regexp"
	"testing"
)

func TestParseStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want status
	}{
		{"5.4.5 Daily user sending limit exceeded", status{5, 4, 5}},
		{"4.7.28 [192.0.2.1] Gmail has detected\n4.7.28 an unusual rate", status{4, 7, 28}},
		{"4.7.500", status{4, 7, 500}},
		{"5.4.5\nDaily user", status{5, 4, 5}},
		{"4.0.0 x", status{4, 0, 0}},
		{"Throttling failure: Maximum sending rate exceeded.", status{}},
		{"Sorry, 5.4.5", status{}},
		{"2.0.0 ok", status{2, 0, 0}},
		{"3.4.5 x", status{}},
		{" 5.4.5 x", status{}},
		{"5.4.5: x", status{}},
		{"5.4.5\tx", status{}},
		{"5.4.05 x", status{}},
		{"5.4.0005 x", status{}},
		{"5.4.5.1 x", status{}},
		{"5.4. x", status{}},
		{"5.4.+5 x", status{}},
		{"5.4 5", status{}},
		{"192.0.2 x", status{}},
		{"", status{}},
	} {
		if got := parseStatus(c.text); got != c.want {
			t.Errorf("%q: %v, want %v", c.text, got, c.want)
		}
	}
}

// FuzzParseStatus compares with the grammar of RFC 3463.
func FuzzParseStatus(f *testing.F) {
	for _, text := range []string{"5.4.5 Daily", "4.7.28\nx", "5.4.05", "5..5 x", "4.4.5.6", "", "\n", "5.4.\xff"} {
		f.Add(text)
	}
	grammar := regexp.MustCompile(`\A([245])\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})(?: |\n|\z)`)
	f.Fuzz(func(t *testing.T, text string) {
		want := status{}
		if m := grammar.FindStringSubmatch(text); m != nil {
			if _, err := fmt.Sscan(m[1]+" "+m[2]+" "+m[3], &want.class, &want.subject, &want.detail); err != nil {
				t.Fatal(err)
			}
		}
		if got := parseStatus(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	})
}

// TestIsLimit is about the codes that no server of the other tests answers.
func TestIsLimit(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]bool{
		"421 4.4.5": true, "451 4.4.5": true, "550 5.4.5": true, "550 5.4.6": false, "451 4.5.4": false,
		"450 4.7.28": true, "550 5.7.28": false, "454 4.7.0": false, "454": true, "554": false, "451": false,
		"432 4.3.2": true, "421 4.3.2": false, "432": false,
		"451 4.7.499": false, "451 4.7.500": true, "451 4.7.699": true, "451 4.7.700": false,
		"451 4.7.849": false, "451 4.7.850": true, "451 4.7.899": true, "451 4.7.900": false, "550 5.7.500": false,
		"550 5.1.90": true, "550 5.7.232": true, "550 5.7.233": true, "550 5.7.508": true, "550 5.7.705": false,
		"550 5.2.121": false, "550 5.2.122": false, "450 4.2.1": false, "452 4.5.3": false, "530 5.4.5": false,
		"454 5.7.1": false, "550 4.4.5": false,
	} {
		var code int
		var text string
		if _, err := fmt.Sscanf(reply+" x", "%d %s", &code, &text); err != nil {
			t.Fatal(err)
		}
		if got := isLimit(code, parseStatus(text)); got != want {
			t.Errorf("%s: %v, want %v", reply, got, want)
		}
	}
}
