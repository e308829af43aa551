package storage_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/internal/inprocess"
	"github.com/pannier/pannier/sdk/storage"
)

// links is a plugin whose volumes are directories below the driver's endpoint. A workload gets a volume as a
// symbolic link; examples/plugins/dirs mounts them. It keeps nothing in memory, and every call may be repeated.
type links struct{}

func volumes(d storage.Driver) string { return strings.TrimPrefix(d.Endpoint, "unix://") }

func (links) Fingerprint(ctx context.Context, d storage.Driver, opts storage.FingerprintOptions,
	report func(storage.Fingerprint) error,
) error {
	return storage.Poll(ctx, opts, report, func(context.Context) storage.Fingerprint {
		f := storage.Fingerprint{
			Healthy: true, Provider: "links", Version: "1.0.0", Node: &storage.NodeCapabilities{NodeID: "local"},
		}
		if _, err := os.Stat(volumes(d)); err != nil {
			f.Healthy, f.Message = false, err.Error()
		}
		return f
	})
}

func (links) ValidateVolume(_ context.Context, d storage.Driver, req storage.ValidateRequest) ([]string, error) {
	if _, err := os.Stat(filepath.Join(volumes(d), req.Volume.ExternalID)); err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	return nil, nil
}

func (links) Publish(_ context.Context, d storage.Driver, req storage.PublishRequest) error {
	source := filepath.Join(volumes(d), req.Volume.ExternalID)
	if _, err := os.Stat(source); err != nil {
		return status.Errorf(codes.NotFound, "there is no volume %q", req.Volume.ExternalID)
	}
	if at, err := os.Readlink(req.TargetPath); err == nil && at == source {
		return nil // an earlier call did it
	}
	return os.Symlink(source, req.TargetPath)
}

func (links) Unpublish(_ context.Context, _ storage.Driver, _ storage.Volume, target string) error {
	if err := os.Remove(target); !os.IsNotExist(err) {
		return err
	}
	return nil
}

// A plugin's main is sdk.Main(info, storage.Plugin(links{})). Here it is served in the same process, and called as a
// host calls it.
func Example() {
	info := sdk.Info{Name: "links", Version: "1.0.0"}
	conn, stop, err := inprocess.Serve(info, storage.Plugin(links{}))
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	host, ctx := storage.NewClient(conn), context.Background()

	dir, err := os.MkdirTemp("", "links-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	driver := storage.Driver{ID: "shared", Endpoint: "unix://" + dir}
	notes := storage.Volume{Name: "notes", ExternalID: "notes"}
	request := storage.PublishRequest{Volume: notes, TargetPath: filepath.Join(dir, "target")}

	fmt.Println(host.Publish(ctx, driver, request))
	if err := os.Mkdir(filepath.Join(dir, "notes"), 0o750); err != nil {
		fmt.Println(err)
		return
	}
	for range 2 { // a host repeats a call whose answer it has not received
		fmt.Println(host.Publish(ctx, driver, request))
	}
	fmt.Println(host.Unpublish(ctx, driver, notes, request.TargetPath))
	// Output:
	// rpc error: code = NotFound desc = there is no volume "notes"
	// <nil>
	// <nil>
	// <nil>
}
