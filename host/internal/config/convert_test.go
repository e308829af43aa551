package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// in returns a job with one group.
func jobOf(group string) string {
	return "job \"shop\" {\n  datacenters = [\"dc1\"]\n  group \"web\" {\n" + group + "\n  }\n}\n"
}

const (
	webTask = `task "web" {
  driver = "raw_exec"
  config {
    command = "/usr/bin/web"
    args    = ["-listen", "127.0.0.1:${NOMAD_PORT_http}"]
  }
}`
	bridged = "network {\n  mode = \"bridge\"\n  port \"http\" {\n    to = 8080\n  }\n}\n"
	connect = "connect {\n  sidecar_service {\n%s\n  }\n}\n"
)

func meshed(inside string) string {
	return "service {\n  name = \"web\"\n  port = \"8080\"\n" + fmt.Sprintf(connect, inside) + "}\n"
}

// TestJobsAreConverted converts groups of the shapes that jobs have. The result is a valid spec, with a comment for
// each change, and has what has to be in it.
func TestJobsAreConverted(t *testing.T) {
	for name, tc := range map[string]struct {
		job  string
		want []string
	}{
		"bridge and to":   {jobOf(bridged + meshed("") + webTask), []string{`# mode = "bridge": a workload has its node's network`, "static = 8080"}},
		"to -1":           {jobOf("network {\n  port \"http\" {\n    to = -1\n  }\n}\n" + webTask), []string{"# to: a workload has"}},
		"to and static":   {jobOf("network {\n  port \"http\" {\n    static = 80\n    to = 8080\n  }\n}\n" + webTask), []string{"static = 80", "listen at 80"}},
		"static as text":  {jobOf("network {\n  port \"http\" {\n    static = \"80\"\n    host_network = \"public\"\n  }\n}\n" + webTask), []string{"# host_network:"}},
		"dns, cni":        {jobOf("network {\n  mode = \"cni/x\"\n  hostname = \"h\"\n  dns {\n    servers = [\"1.1.1.1\"]\n  }\n  port \"http\" {}\n}\n" + webTask), []string{"# dns:", "# hostname:", `# mode = "cni/x"`}},
		"native":          {jobOf("network {\n  port \"http\" {}\n}\nservice {\n  name = \"web\"\n  port = \"http\"\n  connect {\n    native = true\n  }\n}\n" + webTask), []string{"native = true"}},
		"a sidecar":       {jobOf(bridged + meshed("") + webTask), []string{"sidecar {", `"--base-id", "${base_id}"`, "# sidecar: Nomad starts"}},
		"sidecar_task":    {jobOf(bridged + strings.Replace(meshed(""), "sidecar_service {", "sidecar_task {\n  resources {\n    cpu = 1\n  }\n}\nsidecar_service {", 1) + webTask), []string{"# sidecar_task:"}},
		"upstreams":       {jobOf(bridged + meshed("proxy {\n  upstreams {\n    destination_name = \"count-api\"\n    local_bind_port = 9191\n  }\n}") + strings.Replace(webTask, "config {", "env {\n  API = \"http://${NOMAD_UPSTREAM_ADDR_count_api}\"\n}\nconfig {", 1)), []string{`API = "http://127.0.0.1:9191"`, "local_bind_port"}},
		"transparent":     {jobOf(bridged + meshed("proxy {\n  transparent_proxy {}\n}") + webTask), []string{"# transparent_proxy:"}},
		"expose":          {jobOf(bridged + meshed("proxy {\n  expose {\n    path {\n      path = \"/m\"\n      protocol = \"http\"\n      local_path_port = 8080\n      listener_port = \"http\"\n    }\n  }\n}") + webTask), []string{"expose {", "listener_port"}},
		"proxy config":    {jobOf(bridged + meshed("proxy {\n  config {\n    envoy_dogstatsd_url = \"udp://${attr.unique.network.ip-address}:8125\"\n  }\n}") + webTask), []string{"# $${attr.unique.network.ip-address}:", `udp://$${attr`}},
		"checks":          {jobOf(bridged + "service {\n  name = \"web\"\n  port = \"http\"\n  check {\n    type = \"http\"\n    path = \"/\"\n    interval = \"10s\"\n    timeout = \"2s\"\n    check_restart {\n      limit = 3\n    }\n  }\n  check {\n    type = \"script\"\n    command = \"/bin/true\"\n    args = [\"-x\"]\n    interval = \"10s\"\n    timeout = \"1s\"\n  }\n}\n" + webTask), []string{"# check_restart:", "# a check of a script:", `type = "process"`}},
		"provider nomad":  {jobOf(bridged + "service {\n  provider = \"nomad\"\n  name = \"web\"\n  port = \"http\"\n  address_mode = \"alloc\"\n}\n" + webTask), []string{"# provider:", "# address_mode:"}},
		"service of task": {jobOf(bridged + strings.Replace(webTask, "config {", "service {\n  name = \"web\"\n  port = \"http\"\n  task = \"x\"\n  tags = [\"${NOMAD_ALLOC_ID}\", \"${NOMAD_JOB_NAME}\", \"${attr.unique.hostname}\"]\n}\nconfig {", 1)), []string{"# task:", `"$${NOMAD_ALLOC_ID}", "${workload.id}", "${node.name}"`}},
		"a volume":        {jobOf("volume \"data\" {\n  type = \"csi\"\n  source = \"mysql\"\n  read_only = false\n  access_mode = \"single-node-writer\"\n  attachment_mode = \"file-system\"\n  per_alloc = true\n  mount_options {\n    fs_type = \"ext4\"\n    mount_flags = [\"noatime\"]\n  }\n}\n" + strings.Replace(webTask, "config {", "volume_mount {\n  volume = \"data\"\n  destination = \"/var/lib/mysql\"\n}\nconfig {", 1) + "\nnetwork {\n  port \"http\" {}\n}"), []string{"# per_alloc:", `destination = "/var/lib/mysql"`, "noatime"}},
		"a host volume":   {jobOf("volume \"certs\" {\n  type = \"host\"\n  source = \"ca\"\n}\nnetwork {\n  port \"http\" {}\n}\n" + webTask), []string{`# volume "certs" of the type "host":`}},
		"docker":          {jobOf(bridged + meshed("") + "task \"web\" {\n  driver = \"docker\"\n  config {\n    image = \"example/web:1\"\n    ports = [\"http\"]\n  }\n  resources {\n    cpu = 100\n  }\n}"), []string{"docker run $(pannier workload start -o docker SPEC) example/web:1", "# the proxy of service \"web\":", "# resources:"}},
		"scheduling":      {jobOf("count = 3\nconstraint {\n  attribute = \"x\"\n}\nupdate {\n  canary = 1\n}\nrestart {\n  attempts = 1\n}\nnetwork {\n  port \"http\" {}\n}\n" + webTask), []string{"# datacenters, count, constraint: a workload runs on the host", "# update, restart:"}},
		"two tasks":       {jobOf("network {\n  port \"http\" {}\n}\ntask \"init\" {\n  driver = \"exec\"\n  lifecycle {\n    hook = \"prestart\"\n  }\n  config {\n    command = \"/bin/init\"\n  }\n}\n" + webTask), []string{`# task "init": a workload has one program`, "/usr/bin/web"}},
		"user, signals":   {jobOf("network {\n  port \"http\" {}\n}\nshutdown_delay = \"5s\"\n" + strings.Replace(webTask, "driver", "user = \"nobody\"\nkill_signal = \"SIGINT\"\nkill_timeout = \"20s\"\nleader = true\ndriver", 1)), []string{`user = "nobody"`, `kill_signal`, `shutdown_delay = "5s"`, "leader"}},
		"ingress":         {jobOf("network {\n  mode = \"bridge\"\n  port \"in\" {\n    static = 8080\n    to = 8080\n  }\n}\nservice {\n  name = \"ingress\"\n  port = \"8080\"\n  connect {\n    gateway {\n      proxy {}\n      ingress {\n        listener {\n          port = 8080\n          protocol = \"tcp\"\n          service {\n            name = \"web\"\n          }\n        }\n      }\n    }\n  }\n}"), []string{"ingress {", "sidecar {"}},
		"a mesh gateway":  {jobOf("network {\n  mode = \"bridge\"\n  port \"mesh_wan\" {}\n}\nservice {\n  name = \"mesh-gateway\"\n  port = \"mesh_wan\"\n  connect {\n    gateway {\n      mesh {}\n      proxy {}\n    }\n  }\n}"), []string{"mesh {", "sidecar {"}},
		"two services": {jobOf(bridged + meshed("") + strings.Replace(meshed("port = 21001"), `"web"`, `"admin"`, 1) + webTask), []string{
			`service = "web"`, `service = "admin"`,
		}},
		"the content alone": {bridged + meshed("") + webTask, []string{`workload "pasted"`}},
		"a group alone":     {"group \"api\" {\n" + bridged + webTask + "\n}", []string{`workload "api"`}},
		"meta and identity": {jobOf(bridged + "meta {\n  a = \"b\"\n}\nservice {\n  name = \"web\"\n  port = \"http\"\n  meta {\n    v = \"${node.datacenter}\"\n  }\n  identity {\n    aud = [\"x\"]\n  }\n}\n" + webTask), []string{"# identity:", "# meta:", `v = "${node.datacenter}"`}},
	} {
		t.Run(name, func(t *testing.T) {
			spec, err := ConvertJob("pasted.nomad.hcl", []byte(tc.job), "")
			check.NoError(t, err)
			if _, err := ParseWorkload("spec", spec); err != nil {
				t.Errorf("%v", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(strings.Join(strings.Fields(string(spec)), " "), strings.Join(strings.Fields(want), " ")) {
					t.Errorf("no %q", want)
				}
			}
			if t.Failed() {
				t.Logf("of\n%s\nit makes\n%s", tc.job, spec)
			}
		})
	}
}

func TestJobsThatAreNotConverted(t *testing.T) {
	for job, want := range map[string]string{
		"job \"a\" {":                    "pasted",
		"x = 1":                          "no job, no group",
		`{"job": {}}`:                    "only a job in HCL",
		"group \"a\" {}\ngroup \"b\" {}": `the groups ["a" "b"]: name one by -group`,
	} {
		if spec, err := ConvertJob("pasted", []byte(job), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\n%s", job, err, spec)
		}
	}
	spec, err := ConvertJob("pasted", []byte("group \"a\" {}\ngroup \"b\" {}"), "b")
	if err != nil || !strings.Contains(string(spec), `workload "b"`) {
		t.Errorf("%v\n%s", err, spec)
	}
}
