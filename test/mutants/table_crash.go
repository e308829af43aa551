package main

const crashPkg = "./test/suite/crash"

// crashes are planted bugs that show only if an agent is killed at the wrong instant.
var crashes = []mutant{
	{
		name: "intent-not-in-journal", promise: "after kill -9 at any instant the restart ends in the same state",
		in: "host/internal/workload", decl: "run.do",
		old: "		if !a.joins {\n			if err := r.flush(); err != nil {\n				return err\n			}\n		}\n",
		new: "",
		pkg: crashPkg, run: "^TestMatrix$/^local$/^reboot$/^claim:called$", args: []string{"-full"},
	},
	{
		name: "users-not-in-journal", promise: "users of a staging mount are known after a restart",
		in: "host/internal/workload/volumesteps", decl: "Steps.join",
		old: "	return u, v.set.Save(func() {}, u.put(b, key))\n",
		new: "	return u, v.set.Save(func() {})\n",
		pkg: workloadPkg, run: "^TestKilledInTheMiddleOfACall$/^stage$",
	},
	{
		name: "unmounted-again-without-claim", promise: "a volume is not unmounted again once its claim is gone, also after kill -9",
		in: "host/internal/workload", decl: "run.release",
		old: "	if err := r.flush(); err != nil {\n		return err\n	}\n",
		new: "",
		pkg: workloadPkg, run: "^TestNothingIsUnmountedWithoutAClaim$",
	},
	{
		name: "first-to-leave-unstages", promise: "a volume is unstaged after the last of its users, also across restarts",
		in: "host/internal/workload/volumesteps", decl: "Steps.Unstage",
		old: "	if slices.Equal(u.Users, []string{v.user()}) {\n",
		new: "	if slices.Contains(u.Users, v.user()) {\n",
		pkg: crashPkg, run: "^TestMatrix$/^local$/^chance$", seeds: 2,
	},
}
