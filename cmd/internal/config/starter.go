package config

import (
	_ "embed"
	"io"
)

//go:embed starter.yaml
var starter []byte

// Init writes a commented configuration to start from. It needs the
// destination type "log" and nothing else.
func Init(w io.Writer) error {
	_, err := w.Write(starter)
	return err
}
