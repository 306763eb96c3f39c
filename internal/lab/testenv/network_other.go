//go:build !linux

package testenv

import (
	"context"
	"fmt"
	"net"
)

func (*Network) open(context.Context) (net.Listener, error) {
	return nil, fmt.Errorf("%w: they need Linux", errNoNetwork)
}
