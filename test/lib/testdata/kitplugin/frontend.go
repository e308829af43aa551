package main

import (
	"context"
	"net/http"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/frontend"
)

// doors is a front door.
type doors struct{ *plugin }

func (d *doors) Ready(context.Context, frontend.Host) error {
	if d.mode == "early" {
		return d.accept()
	}
	return nil
}

// accept accepts a connection, if there is a socket, and keeps it.
func (d *doors) accept() error {
	for _, name := range sdk.Listeners() {
		l, err := sdk.Listen(name)
		if err != nil {
			return err
		}
		go func() { _, _ = l.Accept() }()
	}
	return nil
}

func (d *doors) Serve(ctx context.Context, host frontend.Host) error {
	if d.mode == "deaf" {
		<-ctx.Done()
		return nil
	}
	l, err := host.Listen("http")
	if err != nil {
		return err
	}
	err = frontend.ServeHTTP(ctx, l, http.NotFoundHandler())
	if d.mode == "goes-on" {
		return d.accept()
	}
	return err
}
