package conformance

import (
	"context"
	"errors"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// Inspect starts a binary as a host does, asks it who it is, and ends it. It needs no configuration. The error has the
// last line that it printed.
func Inspect(ctx context.Context, binary string, args ...string) (info *pluginv1.InfoResponse, err error) {
	r, err := newRun(Config{Binary: binary, Args: args})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.clear()) }()
	c := &checking{}
	defer c.end()
	p, err := r.start(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if info, err = p.api.Info(ctx, &pluginv1.InfoRequest{}); err != nil {
		return nil, err
	}
	return info, p.stop(ctx)
}
