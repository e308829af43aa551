// Command pseudodevices is a small device plugin for tests and as an example. Its devices are /dev/zero (several)
// and /dev/full (one), so no hardware is needed.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/device"
)

const version = "0.1.0"

func main() {
	sdk.Main(sdk.Info{Name: "pseudodevices", Version: version}, device.Plugin(newDevices()))
}

// config is the plugin's config block.
type config struct {
	// Zeros is the number of /dev/zero devices.
	Zeros int `json:"zeros"`
	// Dir is the directory where a workload finds its devices by id.
	Dir string `json:"dir"`
	// SickDir has a file for each unhealthy device, named by the device's id, with the reason as its content.
	// Empty: all devices are healthy.
	SickDir string `json:"sick_dir"`
}

// lookEvery is the interval at which SickDir is read.
const lookEvery = 50 * time.Millisecond

// devices implements device.Device and device.StatsReader.
type devices struct {
	mu      sync.Mutex
	cfg     config
	changed chan struct{} // closed and replaced by Configure
}

func newDevices() *devices {
	return &devices{cfg: config{Zeros: 2, Dir: "/dev/pseudo"}, changed: make(chan struct{})}
}

func parse(raw []byte) (config, error) {
	cfg := newDevices().cfg
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&cfg); err != nil {
		return cfg, err
	}
	if cfg.Zeros < 0 || cfg.Zeros >= device.MaxDevices {
		return cfg, fmt.Errorf("zeros: %d must be from 0 to %d", cfg.Zeros, device.MaxDevices-1)
	}
	if !filepath.IsAbs(cfg.Dir) {
		return cfg, fmt.Errorf("dir: %q must be an absolute path", cfg.Dir)
	}
	return cfg, nil
}

func (d *devices) Validate(_ context.Context, raw []byte) error {
	_, err := parse(raw)
	return err
}

func (d *devices) Configure(_ context.Context, raw []byte) error {
	cfg, err := parse(raw)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cfg = cfg
	close(d.changed)
	d.changed = make(chan struct{})
	return nil
}

func (d *devices) now() (config, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg, d.changed
}

func (d *devices) Fingerprint(ctx context.Context, report func([]device.Group) error) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var told []device.Group
	for {
		cfg, changed := d.now()
		if groups := cfg.groups(); told == nil || !reflect.DeepEqual(groups, told) {
			if err := report(groups); err != nil {
				return err
			}
			told = groups
		}
		select {
		case <-look.C:
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c config) groups() []device.Group {
	zeros := device.Group{Vendor: "pannier", Type: "pseudo", Name: "zero", Attributes: map[string]string{"reads": "zeros"}}
	for n := range c.Zeros {
		zeros.Devices = append(zeros.Devices, c.device(fmt.Sprintf("zero-%d", n)))
	}
	return []device.Group{zeros, {
		Vendor: "pannier", Type: "pseudo", Name: "full",
		Devices: []device.Instance{c.device("full-0")},
	}}
}

func (c config) device(id string) device.Instance {
	out := device.Instance{ID: id, Healthy: true}
	if c.SickDir == "" {
		return out
	}
	why, err := os.ReadFile(filepath.Join(c.SickDir, id))
	if !errors.Is(err, os.ErrNotExist) {
		out.Healthy, out.Message = false, strings.TrimSpace(string(why))
	}
	return out
}

// Reserve gives a workload the device files, and tells it their ids in PSEUDO_DEVICES.
func (d *devices) Reserve(_ context.Context, ids []string) (device.Reservation, error) {
	cfg, _ := d.now()
	known := map[string]string{}
	for _, g := range cfg.groups() {
		for _, i := range g.Devices {
			known[i.ID] = "/dev/" + g.Name
		}
	}
	r := device.Reservation{Env: map[string]string{"PSEUDO_DEVICES": strings.Join(ids, ",")}}
	for _, id := range ids {
		path := known[id]
		if path == "" {
			return r, status.Errorf(codes.NotFound, "there is no device %q", id)
		}
		r.Devices = append(r.Devices, device.Node{HostPath: path, TaskPath: filepath.Join(cfg.Dir, id), Permissions: "rw"})
	}
	return r, nil
}

// Stats reports zero bytes read for each device, because the kernel does not count them.
func (d *devices) Stats(ctx context.Context, interval time.Duration, report func([]device.Stats) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		cfg, _ := d.now()
		var all []device.Stats
		for _, g := range cfg.groups() {
			for _, i := range g.Devices {
				all = append(all, device.Stats{
					ID: i.ID, Time: time.Now(), Summary: "not counted",
					Values: map[string]float64{"read_bytes": 0},
				})
			}
		}
		if err := report(all); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
