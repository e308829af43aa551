package main

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

// volumes is a storage plugin. All of its state is in the folder STATE: see store.go.
type volumes struct{ *plugin }

func (v *volumes) Fingerprint(ctx context.Context, d storage.Driver, opts storage.FingerprintOptions,
	report func(storage.Fingerprint) error,
) error {
	interval := min(opts.Interval, time.Hour)
	for last, first := false, true; ; first = false {
		if fp := v.look(ctx, d); first || fp.Healthy != last && v.mode != "never-sick" {
			if err := report(fp); err != nil {
				return err
			}
			last = fp.Healthy
		}
		if v.mode == "endless" && opts.Interval == 30*time.Minute {
			select {}
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (v *volumes) look(ctx context.Context, d storage.Driver) storage.Fingerprint {
	v.mu.Lock()
	answer := v.answer
	v.busy++
	if v.mode == "busy" && v.busy > 1 {
		answer = "too busy"
	}
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		v.busy--
		v.mu.Unlock()
	}()
	time.Sleep(5 * time.Millisecond)
	fp := storage.Fingerprint{Provider: answer, Message: time.Now().String()}
	if v.reach(ctx, d.Endpoint, "fingerprint", "") != nil {
		return fp
	}
	fp.Healthy = true
	fp.Controller = &storage.ControllerCapabilities{
		CreateDelete: true, AttachDetach: true, ListVolumes: true, CreateDeleteSnapshot: true, ListSnapshots: true,
		Clone: true, Expand: true, OnlineExpand: true,
	}
	fp.Node = &storage.NodeCapabilities{NodeID: "n", StageUnstage: true, VolumeStats: true, Expand: true}
	return fp
}

// call makes the part that all calls on a volume have in common.
func (v *volumes) call(ctx context.Context, d storage.Driver, what string, vol storage.Volume) error {
	if vol.Name == "" {
		switch v.mode {
		case "panics":
			panic("no name")
		case "dies":
			os.Exit(9)
		}
		return status.Error(codes.InvalidArgument, "no volume")
	}
	secret := vol.Secrets["password"]
	if what == "stage" {
		switch v.mode {
		case "logs":
			if calls(vol.Name) {
				sdk.Logger().Trace("stage", "secrets", vol.Secrets)
			}
		case "shows":
			cmd := exec.Command("sleep", "5")
			cmd.Env = append(os.Environ(), "PASSWORD="+secret)
			if err := cmd.Start(); err != nil {
				return err
			}
			v.mu.Lock()
			v.childs = append(v.childs, cmd)
			v.mu.Unlock()
		}
	}
	if err := v.reach(ctx, d.Endpoint, vol.Name+"."+what, secret); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mode == "once" {
		if v.seen[what+vol.Name] {
			return status.Error(codes.AlreadyExists, "it is done")
		}
		v.seen[what+vol.Name] = true
	}
	if v.mode == "jealous" && during("work.generations", vol) {
		if pid, err := os.ReadFile(v.state + "/" + vol.Name + ".owner"); err == nil &&
			string(pid) != strconv.Itoa(os.Getpid()) && running(string(pid)) {
			return status.Error(codes.FailedPrecondition, "another process has the volume")
		}
		return os.WriteFile(v.state+"/"+vol.Name+".owner", []byte(strconv.Itoa(os.Getpid())), 0o600)
	}
	return nil
}

func running(pid string) bool {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	// Without a pid, the process was killed while it wrote it.
	return pid != "" && err == nil && !strings.Contains(string(text), ") Z ")
}
