package handlers

// FieldError is a mistake in one field of a Config. Validate and New of the destinations join one for each
// mistake, as a *FieldError: [errors.AsType] and [errors.As] find the first.
type FieldError struct {
	// Path is the key of the field in JSON and YAML, with dots between levels and numbers for
	// list elements: "to", "tls.ca_file", "brokers.2".
	Path string
	// Err describes the mistake and the cure, without the path and without the text of a [Secret].
	Err error
}

// Error returns "path: mistake".
func (e *FieldError) Error() string { return e.Path + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }
