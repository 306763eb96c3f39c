package outboxes

import "testing"

func TestHasPassword(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"":                                   false,
		"postgres://relay@h/db":              false,
		"postgres://relay:@h/db":             true,
		"postgres://relay:word@h/db":         true,
		"postgresql://h/db?password=word":    true,
		"postgres://relay@h/db?passfile=/p":  false,
		"host=h user=relay dbname=db":        false,
		"host=h password = 'word' dbname=db": true,
		"host=h sslpassword=word user=a":     false,
		"password=word host=h":               true,
	} {
		if got := hasPassword(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
