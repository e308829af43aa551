// The smallest possible plugin.
package main

import (
	"context"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

func main() {
	sdk.Main(sdk.Info{Name: "minimal", Version: "0.1.0"}, storage.Plugin(&minimal{}))
}

type minimal struct{ storage.Storage }

func (*minimal) Unstage(context.Context, storage.Driver, storage.Volume, string) error {
	sdk.Logger().Info("nothing to unstage")
	return nil
}
