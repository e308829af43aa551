package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
	"github.com/pannier/pannier/sdk/storage"
)

var storageKind = &kind{
	service: storagev1.File_pannier_plugin_storage_v1_storage_proto.Services().ByName("StorageService"),
	ask:     askStorage,
	methods: storageMethods, optional: []string{"Attach", "Detach", "Stage", "Unstage"},
	missing: func(cfg *Config) string {
		if cfg.Driver.Endpoint == "" {
			return "needs a CSI driver (-driver ENDPOINT, Config.Driver)"
		}
		return ""
	},
	job: storageJob,
	refusals: []refusal{{
		"to validate a volume that does not exist", codes.NotFound,
		func(ctx context.Context, r *run, conn grpc.ClientConnInterface) error {
			return validateGone(ctx, conn, r.cfg.Driver)
		},
	}},
	final: func(ctx context.Context, conn grpc.ClientConnInterface, at backend) error {
		return validateGone(ctx, conn, at.driver)
	},
	stream: func(ctx context.Context, conn grpc.ClientConnInterface, at backend, opened func()) error {
		opts := fingerprintWithin(at.patience)
		opts.Interval /= 2 // distinguishes it from ask in the kit's own tests
		return storage.NewClient(conn).Fingerprint(ctx, at.driver, opts,
			func(storage.Fingerprint) error { opened(); return nil })
	},
}

// fingerprintWithin makes an unreachable driver be reported after d.
func fingerprintWithin(d time.Duration) storage.FingerprintOptions {
	return storage.FingerprintOptions{Interval: time.Hour, ProbeTimeout: d}
}

// plain is a capability that every driver has.
var plain = storage.Capability{AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem}

func validateGone(ctx context.Context, conn grpc.ClientConnInterface, d storage.Driver) error {
	v := storage.Volume{Name: "gone", ExternalID: "no-such-volume", Capability: plain}
	_, err := storage.NewClient(conn).ValidateVolume(ctx, d,
		storage.ValidateRequest{Volume: v, Capabilities: []storage.Capability{plain}})
	return err
}

var errEnough = errors.New("enough")

func fingerprint(ctx context.Context, conn grpc.ClientConnInterface, at backend) (fp storage.Fingerprint, err error) {
	err = storage.NewClient(conn).Fingerprint(ctx, at.driver, fingerprintWithin(at.patience),
		func(f storage.Fingerprint) error {
			fp = f
			return errEnough
		})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return fp, err
}

func askStorage(ctx context.Context, conn grpc.ClientConnInterface, at backend) (string, error) {
	fp, err := fingerprint(ctx, conn, at)
	if err != nil {
		return "", err
	}
	fp.Message = "" // for people: it may contain a time
	text, err := json.Marshal(fp)
	return string(text), err
}

// markedVolume returns a volume whose secrets and mount flags are markers, for the kit's own backends.
func markedVolume(at backend, name string) storage.Volume {
	secret := at.marker
	return storage.Volume{
		Name: name, ExternalID: name, Secrets: map[string]string{"password": secret + "-volume"},
		Capability: storage.Capability{
			AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem,
			MountFlags: []string{"password=" + secret + "-flag"},
		},
	}
}

var storageMethods = []method{
	{"ValidateVolume", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		v := markedVolume(at, name)
		_, err := storage.NewClient(conn).ValidateVolume(ctx, at.driver,
			storage.ValidateRequest{Volume: v, Capabilities: []storage.Capability{v.Capability}})
		return err
	}},
	{"Attach", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		_, err := storage.NewClient(conn).Attach(ctx, at.driver,
			storage.AttachRequest{Volume: markedVolume(at, name+"-attach"), NodeID: "node"})
		return err
	}},
	{"Detach", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		return storage.NewClient(conn).Detach(ctx, at.driver, markedVolume(at, name+"-detach"), "node")
	}},
	{"Stage", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		req := storage.StageRequest{Volume: markedVolume(at, name+"-stage"), StagingPath: at.path("staging")}
		return storage.NewClient(conn).Stage(ctx, at.driver, req)
	}},
	{"Unstage", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		return storage.NewClient(conn).Unstage(ctx, at.driver, markedVolume(at, name+"-unstage"), at.path("staging"))
	}},
	{"Publish", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		req := storage.PublishRequest{
			Volume: markedVolume(at, name+"-publish"), StagingPath: at.path("staging"),
			TargetPath: at.path("target"),
		}
		return storage.NewClient(conn).Publish(ctx, at.driver, req)
	}},
	{"Unpublish", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		return storage.NewClient(conn).Unpublish(ctx, at.driver, markedVolume(at, name+"-unpublish"), at.path("target"))
	}},
}

func storageJob(ctx context.Context, r *run, conn grpc.ClientConnInterface, name string) ([]step, error) {
	fp, err := r.usable(ctx, conn)
	if err != nil {
		return nil, err
	}
	v, err := r.volume(fp, name)
	if err != nil {
		return nil, err
	}
	var steps []step
	add := func(on bool, s step) {
		if on {
			steps = append(steps, s)
		}
	}
	const target = "target"
	add(v.creates, step{name: "Create", base: true, do: answering(v.create, func() string { return v.ExternalID })})
	add(true, step{name: "ValidateVolume", do: silent(v.validate)})
	add(v.attaches, step{name: "Attach", do: answering(v.attach, func() string { return fmt.Sprint(v.context) })})
	add(v.staging != "", step{name: "Stage", do: silent(v.stage)})
	add(true, step{name: "Publish", do: silent(func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return v.publish(ctx, conn, target, false)
	})})
	add(true, step{name: "Unpublish", undo: true, do: silent(func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return v.unpublish(ctx, conn, target)
	})})
	add(v.staging != "", step{name: "Unstage", undo: true, do: silent(v.unstage)})
	add(true, step{name: "unmount", tidy: true, do: silent(func(context.Context, grpc.ClientConnInterface) error {
		r.unmountBelow(v.dir)
		return nil
	})})
	add(v.attaches, step{name: "Detach", undo: true, do: silent(v.detach)})
	add(v.creates, step{name: "Delete", undo: true, do: silent(v.remove)})
	return steps, nil
}

// volumeCall is one of the calls of a volume.
type volumeCall func(context.Context, grpc.ClientConnInterface) error

// answering makes a call a step, which answer describes.
func answering(call volumeCall, answer func() string) func(context.Context, grpc.ClientConnInterface) (string, error) {
	return func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
		err := call(ctx, conn)
		return answer(), err
	}
}

// silent makes a call without an answer a step.
func silent(call volumeCall) func(context.Context, grpc.ClientConnInterface) (string, error) {
	return answering(call, func() string { return "" })
}
