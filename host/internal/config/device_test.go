package config

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func TestDevicesOfAWorkload(t *testing.T) {
	want := &hostv1.WorkloadSpec{Id: "w", Devices: []*hostv1.DeviceRequest{
		{Name: "nvidia/gpu/T4", Count: 2}, {Name: "fpga", Count: 1},
	}}
	for name, src := range map[string]string{
		"w.hcl":  "workload \"w\" {\n  device \"nvidia/gpu/T4\" {\n    count = 2\n  }\n  device \"fpga\" {}\n}",
		"w.json": `{"workload": {"w": {"device": {"nvidia/gpu/T4": {"count": 2}, "fpga": {}}}}}`,
	} {
		if got, err := ParseWorkload(name, []byte(src)); err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestDevicesThatAreWrong(t *testing.T) {
	for want, blocks := range map[string]string{
		`w.hcl:2: workload "w": device "a/": the name must be TYPE, VENDOR/TYPE or VENDOR/TYPE/NAME`: "device \"a/\" {}",
		`w.hcl:3: workload "w": device "a": is there twice; count says how many are needed`:          "device \"a\" {}\ndevice \"a\" {}",
		`device "a": count: a whole number from 1 to 256 is required`:                                "device \"a\" {\ncount = 0\n}",
		`device "a": unsupported argument "cuont"; did you mean "count"?`:                            "device \"a\" {\ncuont = 1\n}",
	} {
		_, err := ParseWorkload("w.hcl", []byte("workload \"w\" {\n"+blocks+"\n}"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
