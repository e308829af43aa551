package config

import (
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/vars"
	"github.com/pannier/pannier/host/internal/workload/specs"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

func TestWorkloadIsRead(t *testing.T) {
	src := `
workload "redis" {
  namespace = "prod"
  volume "data" {
    source = "redis"
    destination = "/data"
  }
  volume "raw" {
    source = "raw.1"
    read_only = true
    access_mode = "single-node-reader-only"
    attachment_mode = "block-device"
    destination = "/dev/raw"
    mount_options {
      fs_type = "xfs"
      mount_flags = ["noatime"]
    }
  }
  after = ["db-1", "other/db-2"]
  replaces = ["redis-1"]
  exec {
    command = "redis-server"
    args = ["--dir", "/data"]
    user = "redis"
    env {
      TZ = "UTC"
      N = 1
    }
  }
}`
	got := check.Must(ParseWorkload("w.hcl", []byte(src)))(t)
	want := &hostv1.WorkloadSpec{
		Namespace: "prod", Id: "redis", After: []string{"db-1", "other/db-2"}, Replaces: []string{"redis-1"},
		Volumes: []*hostv1.VolumeRequest{
			{Name: "data", Source: "redis", Destination: "/data"},
			{
				Name: "raw", Source: "raw.1", ReadOnly: true, AccessMode: "single-node-reader-only",
				AttachmentMode: "block-device", Destination: "/dev/raw",
				MountOptions: &hostv1.MountOptions{FsType: "xfs", MountFlags: []string{"noatime"}},
			},
		},
		Exec: &hostv1.Exec{
			Command: "redis-server", Args: []string{"--dir", "/data"}, User: "redis",
			Env: map[string]string{"TZ": "UTC", "N": "1"},
		},
	}
	if !proto.Equal(got, want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
	fromJSON, err := ParseWorkload("w.json", []byte(`{"workload": {"redis": {
		"namespace": "prod",
		"volume": {"data": {"source": "redis", "destination": "/data"},
			"raw": {"source": "raw.1", "read_only": true, "access_mode": "single-node-reader-only",
				"attachment_mode": "block-device", "destination": "/dev/raw",
				"mount_options": {"fs_type": "xfs", "mount_flags": ["noatime"]}}},
		"after": ["db-1", "other/db-2"], "replaces": ["redis-1"],
		"exec": {"command": "redis-server", "args": ["--dir", "/data"], "user": "redis", "env": {"TZ": "UTC", "N": 1}}
	}}}`))
	check.NoError(t, err)
	if !proto.Equal(fromJSON, want) {
		t.Fatalf("JSON: got  %v\nwant %v", fromJSON, want)
	}
}

func TestEphemeralVolume(t *testing.T) {
	want := &hostv1.WorkloadSpec{Id: "w", Volumes: []*hostv1.VolumeRequest{{
		Name: "scratch", Driver: "local", Attributes: map[string]string{"size": "1GiB", "n": "3"}, ReadOnly: true,
		Destination: "/scratch", MountOptions: &hostv1.MountOptions{FsType: "xfs"},
	}}}
	for name, src := range map[string]string{
		"w.hcl": `workload "w" {
  volume "scratch" {
    driver      = "local"
    destination = "/scratch"
    read_only   = true
    attributes {
      size = "1GiB"
      n    = 3
    }
    mount_options {
      fs_type = "xfs"
    }
  }
}`,
		"object.hcl": `workload "w" {
  volume "scratch" {
    driver        = "local"
    destination   = "/scratch"
    read_only     = true
    attributes    = { "size" = "1GiB", n = 3 }
    mount_options {
      fs_type = "xfs"
    }
  }
}`,
		"w.json": `{"workload": {"w": {"volume": {"scratch": {"driver": "local", "destination": "/scratch", "read_only": true,
			"attributes": {"size": "1GiB", "n": 3}, "mount_options": {"fs_type": "xfs"}}}}}}`,
	} {
		got, err := ParseWorkload(name, []byte(src))
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestBadWorkloads(t *testing.T) {
	volume := func(lines string) string {
		return "workload \"w\" {\n  volume \"a\" {\n" + lines + "\n  }\n}\n"
	}
	good := "source = \"s\"\ndestination = \"/d\""
	for pair := range slices.Chunk([]string{
		"", `w.hcl:1: workload: a workload block with a name is required`,
		"workload \"a\" {}\nworkload \"b\" {}",
		`w.hcl:2: workload: a second one in this file; write one file for each workload`,
		"workload {}", `w.hcl:1: missing name for workload: All workload blocks must have 1 labels (name)`,
		"workload \"../w\" {}",
		`w.hcl:1: workload "../w": id: "../w" has the character '/': only a-z, A-Z, 0-9, '-', '_' and '.' are allowed`,
		`workload "` + strings.Repeat("a", 129) + `" {}`,
		`w.hcl:1: workload "` + strings.Repeat("a", 129) + `": id: is longer than 128 characters (129)`,
		"workload \"w\" {\nnamspace = \"a\"\n}",
		`w.hcl:2: workload "w": unsupported argument "namspace"; did you mean "namespace"?`,
		"workload \"w\" {\nnamespace = \"\"\n}", `w.hcl:2: workload "w": namespace: is required`,
		volume(good + "\nreadonly = true"),
		`w.hcl:5: workload "w": volume "a": unsupported argument "readonly"; did you mean "read_only"?`,
		volume(`destination = "/d"`),
		`w.hcl:2: workload "w": volume "a": source: is required: the id of a volume; ` +
			`or driver, for one that the driver makes for this workload`,
		volume("source = \"s\"\ndriver = \"d\"\ndestination = \"/d\""),
		`w.hcl:3: workload "w": volume "a": source: is a volume that is registered, and driver makes one for this workload: ` +
			`leave one out`,
		volume("driver = \"a/b\"\ndestination = \"/d\""),
		`w.hcl:3: workload "w": volume "a": driver: "a/b" has the character '/': only a-z, A-Z, 0-9, '-', '_' and '.' are allowed`,
		volume(good + "\nattributes {\nsize = \"1GiB\"\n}"),
		`w.hcl:5: workload "w": volume "a": attributes: are those of a volume that a driver makes for this workload: ` +
			`write driver instead of source`,
		volume("driver = \"d\"\ndestination = \"/d\"\nattributes = { \"csi.storage.k8s.io/pod.name\" = \"x\" }"),
		`w.hcl:5: workload "w": volume "a": attributes: "csi.storage.k8s.io/pod.name" is set by the agent: leave it out`,
		volume("driver = \"d\"\ndestination = \"/d\"\naccess_mode = \"multi-node-multi-writer\"\n" +
			"attachment_mode = \"block-device\""),
		`w.hcl:5: workload "w": volume "a": access_mode: is "single-node-writer" for a volume that a driver makes for this ` +
			"workload: leave it out\n" +
			`w.hcl:6: workload "w": volume "a": attachment_mode: is "file-system" for a volume that a driver makes for this ` +
			`workload: leave it out`,
		volume("driver = \"d\"\ndestination = \"/d\"\nplugin_id = \"d\"\ncontext {}\nsecrets_from {}"),
		`w.hcl:5: workload "w": volume "a": plugin_id: write driver = "ID" for a volume that the driver makes for this workload` +
			"\n" + `w.hcl:6: workload "w": volume "a": context: ` + ofEphemeral +
			"\n" + `w.hcl:7: workload "w": volume "a": secrets_from: ` + ofDriver,
		volume("source = \"a/b\"\ndestination = \"/d\""),
		`w.hcl:3: workload "w": volume "a": source: "a/b" has the character '/': only visible ASCII characters other than '/' are allowed`,
		volume(`source = "s"`),
		`w.hcl:2: workload "w": volume "a": destination: is required: an absolute path for the workload to find the volume at`,
		volume("source = \"s\"\ndestination = \"d\""),
		`w.hcl:4: workload "w": volume "a": destination: "d" is not an absolute path`,
		volume("source = \"s\"\ndestination = \"/a/../b\""),
		`w.hcl:4: workload "w": volume "a": destination: "/a/../b" is not a clean path; write "/b"`,
		volume("source = \"s\"\ndestination = \"/\""), `w.hcl:4: workload "w": volume "a": destination: must not be /`,
		volume(good + "\nread_only = \"yes\""),
		`w.hcl:5: workload "w": volume "a": read_only: true or false is required, not a string`,
		volume(good + "\nattachment_mode = \"x\""),
		`w.hcl:5: workload "w": volume "a": attachment_mode: "x" is not one of file-system, block-device`,
		"workload \"w\" {\nvolume \"a\" {\n" + good +
			"\n}\nvolume \"a\" {\nsource = \"s\"\ndestination = \"/e\"\n}\n}",
		`w.hcl:6: workload "w": volume "a": is there twice; each needs a name of its own`,
		"workload \"w\" {\nvolume \"a\" {\n" + good + "\n}\nvolume \"b\" {\n" + good + "\n}\n}",
		`w.hcl:8: workload "w": volume "b": destination: "/d" is that of volume "a" too`,
		"workload \"w\" {\nafter = [\"v\", \"w\"]\n}",
		`w.hcl:2: workload "w": after: "w" is this workload: it cannot wait for itself`,
		"workload \"w\" {\nafter = [\"v\"]\nreplaces = [\"v\"]\n}",
		`w.hcl:3: workload "w": replaces: workload "v" is there twice`,
		"workload \"w\" {\nafter = [\"a/b/c\"]\n}",
		`w.hcl:2: workload "w": after: "a/b/c" is neither ID nor NAMESPACE/ID of a workload: "b/c" has the character '/': only a-z, A-Z, 0-9, '-', '_' and '.' are allowed`,
		"workload \"w\" {\nexec {\ncommand = \"a\"\n}\nexec {\ncommand = \"a\"\n}\n}",
		`w.hcl:5: workload "w": exec: block given twice, first on line 2`,
		"workload \"w\" {\nexec {\n}\n}", `w.hcl:2: workload "w": exec: command: is required`,
		"workload \"w\" {\nexec {\ncommand = [\"a\"]\n}\n}",
		`w.hcl:3: workload "w": exec: command: a string is required, not a list: write one, command = "..."`,
		"workload \"w\" {\nexec {\ncommand = \"a\"\nenv = {}\n}\n}",
		`w.hcl:4: workload "w": exec: unsupported argument "env"; did you mean to define a block of type "env"?`,
	}, 2) {
		src, want := pair[0], pair[1]
		_, err := ParseWorkload("w.hcl", []byte(src))
		wantProblems(t, err, want)
	}
	_, err := ParseWorkload("w.json", []byte(`{"workload": {"w": {"exec": {"command": "a", "env": {"A=B": "c"}}}}}`))
	wantProblems(t, err, `w.json:1: workload "w": exec: env: "A=B" cannot be the name of a variable`)
}

// Every accepted workload is valid, and uses only variables that the agent knows.
func FuzzWorkload(f *testing.F) {
	f.Add("w.hcl",
		[]byte("workload \"w\" {\nvolume \"a\" {\nsource = \"s\"\ndestination = \"/d\"\n}\nexec {\ncommand = \"a\"\n}\n}"))
	f.Add("w.json", []byte(`{"workload": {"w": {"volume": [{"a": {"source": "s", "destination": "/d"}}]}}}`))
	for _, name := range []string{"dashboard.hcl", "gateways.hcl", "several.hcl", "several.json"} {
		text, err := os.ReadFile("testdata/nomad/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(name, text)
	}
	f.Add("w.hcl",
		[]byte(
			"workload \"w\" {\nservice \"a\" {\ntags = [\"${\"$\"}${node.name}$${\", \"$$${x}\\u0000node.name\\u0000\"]\n}\n}"))
	f.Fuzz(func(t *testing.T, name string, src []byte) {
		spec, err := ParseWorkload(name, src)
		if err != nil {
			return
		}
		for _, v := range spec.Volumes {
			if claim.CheckVolumeID(v.Source) != nil || specs.CheckPath(v.Destination) != nil || v.Destination == "/" {
				t.Fatalf("accepted: %v", spec)
			}
		}
		var labels []string
		for _, p := range spec.Ports {
			labels = append(labels, p.Label)
		}
		checkServices(t, spec, labels)
		expands := func(texts, known []string) {
			for _, text := range texts {
				if _, err := vars.Expand(text, valuesOf(known)); err != nil {
					t.Fatal(err)
				}
			}
		}
		expands(spec.GetExec().GetArgs(), vars.InPrograms(labels))
		for _, c := range spec.Sidecars {
			expands(c.Command, vars.InSidecars(labels))
		}
	})
}

func checkServices(t *testing.T, spec *hostv1.WorkloadSpec, labels []string) {
	ports := map[string]bool{}
	for _, label := range labels {
		ports[label] = true
	}
	var services []service.Service
	for _, m := range spec.Services {
		s := check.Must(service.FromProto(m))(t)
		if _, err := vars.Service(s, valuesOf(vars.InServices(labels))); err != nil {
			t.Fatal(err)
		}
		services = append(services, s)
	}
	for _, p := range service.Validate(services, ports) {
		t.Fatal(p)
	}
}

func valuesOf(names []string) map[string]string {
	vars := map[string]string{}
	for _, name := range names {
		vars[name] = "<" + name + ">"
	}
	return vars
}
