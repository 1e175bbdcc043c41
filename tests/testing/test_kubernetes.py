"""The files for Kubernetes, as far as they can be checked without one: names, keys and commands,
and the executor's pod that Spark itself makes of the template.
"""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml

from sparkstorm.cli.__main__ import parser
from sparkstorm.common.config import load_conf, parse_override, read_yaml
from sparkstorm.common.spark_versions import VERSION
from sparkstorm.common.stores.addresses import connection_path, not_configured
from sparkstorm.driver.standing import cluster_conf
from sparkstorm.extensions.embedded.java import find_java

FILE = Path(__file__).parents[2] / "conf" / "kubernetes" / "sparkstorm.yaml"
JARS = Path(pyspark.__file__).parent / "jars"
NAMESPACE = "sparkstorm"
# Classes of Spark in which its keys are constants
CLASSES = {
    "spark-core_*.jar": (
        "org/apache/spark/internal/config/package$.class",
        "org/apache/spark/internal/config/Network$.class",
        "org/apache/spark/deploy/k8s/Config$.class",
    ),
    "spark-kubernetes_*.jar": ("org/apache/spark/deploy/k8s/Config$.class",),
}
# Has Spark make the pod of an executor of the settings and the template in the arguments
BUILD = """
import sys
from pyspark import SparkConf, SparkContext

SparkContext._ensure_initialized()
java = SparkContext._jvm
conf = SparkConf()
for line in open(sys.argv[1]):
    conf.set(*line.strip().split(None, 1))
conf.set("spark.kubernetes.executor.podTemplateFile", sys.argv[2]).set("spark.app.name", "sparkstorm")
conf.set("spark.executor.extraJavaOptions", "-XX:+UseSerialGC").set("spark.authenticate", "true")
conf.set("spark.master", "k8s://https://api.example:443")
given = conf._jconf
k8s = java.org.apache.spark.deploy.k8s
none = java.scala.Option.empty()
executor = k8s.KubernetesExecutorConf(given, "spark-of-the-tests", "7", none, 0)
module = lambda package, name: getattr(getattr(package, name), "MODULE$")
profile = module(java.org.apache.spark.resource, "ResourceProfile$").getOrCreateDefaultProfile(given)
secret = module(java.org.apache.spark.internal.config, "package$").AUTH_SECRET_FILE()
security = java.org.apache.spark.SecurityManager(given, none, secret)
security.initializeAuth()
client = java.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
builder = java.org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
made = builder.buildFromFeatures(executor, security, client, profile).pod()
as_json = java.io.fabric8.kubernetes.client.utils.Serialization.asJson
print("{" + f'"pod": {as_json(made.pod())}, "container": {as_json(made.container())}' + "}")
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The objects of the file by kind."""
    every = list(yaml.safe_load_all(FILE.read_text(encoding="utf-8")))
    return {each["kind"]: each for each in every}


def settings_of(found: dict[str, Any]) -> dict[str, str]:
    lines = found["ConfigMap"]["data"]["spark-defaults.conf"].splitlines()
    return dict(line.split(None, 1) for line in lines)


def test_names_fit_together(found: dict[str, Any]) -> None:
    account, service = found["ServiceAccount"]["metadata"]["name"], found["Service"]
    driver = found["StatefulSet"]
    pod = driver["spec"]["template"]
    container = pod["spec"]["containers"][0]
    assert {each["metadata"]["namespace"] for each in found.values()} == {NAMESPACE}
    assert pod["spec"]["serviceAccountName"] == account
    assert [each["name"] for each in found["RoleBinding"]["subjects"]] == [account]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    labels = pod["metadata"]["labels"]
    assert service["spec"]["selector"] == driver["spec"]["selector"]["matchLabels"] == labels
    assert driver["spec"]["serviceName"] == service["metadata"]["name"]
    settings = settings_of(found)
    name = f"{driver['metadata']['name']}-0"
    assert settings["spark.kubernetes.driver.pod.name"] == name
    assert settings["spark.driver.host"] == f"{name}.{service['metadata']['name']}.{NAMESPACE}.svc"
    assert settings["spark.kubernetes.namespace"] == NAMESPACE
    assert settings["spark.kubernetes.container.image"] == container["image"]
    ports = {int(settings[key]) for key in ("spark.driver.port", "spark.driver.blockManager.port")}
    assert ports == {each["port"] for each in service["spec"]["ports"]}
    assert ports == {each["containerPort"] for each in container["ports"]}
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each["name"] for each in pod["spec"]["volumes"]}
    claims = {each["metadata"]["name"] for each in driver["spec"]["volumeClaimTemplates"]}
    assert set(mounts) == volumes | claims
    template = Path(settings["spark.kubernetes.executor.podTemplateFile"])
    assert str(template.parent) == mounts["conf"]
    assert template.name in found["ConfigMap"]["data"]


def test_the_driver_starts_with_keys_that_exist(found: dict[str, Any], tmp_path: Path) -> None:
    container = found["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    words = parser().parse_args(container["command"][1:])
    overrides = dict(parse_override(each) for each in words.c)
    given = tmp_path / "cluster.yaml"
    given.write_text(yaml.safe_dump(overrides), encoding="utf-8")
    conf = cluster_conf(load_conf(str(given)))  # unknown keys and wrong values are refused
    assert not_configured(conf) == []
    assert environment["SPARKSTORM_CLUSTER"] == str(Path("/work") / connection_path(conf))
    assert "SPARKSTORM_REDIS_PASSWORD" in environment
    settings = settings_of(found)
    assert int(settings["spark.executor.instances"]) == conf["sparkstorm.slots.hosts"]
    assert conf["sparkstorm.supervisors"] == conf["sparkstorm.slots.hosts"]
    assert int(settings["spark.executor.cores"]) == conf["sparkstorm.slots.per.supervisor"]


def test_every_setting_is_one_of_sparks(found: dict[str, Any]) -> None:
    known = b""
    for pattern, names in CLASSES.items():
        with zipfile.ZipFile(next(JARS.glob(pattern))) as jar:
            known += b"".join(jar.read(name) for name in names if name in jar.namelist())
    # Since 4.1
    new = {"spark.kubernetes.executor.useDriverPodIP"} if VERSION < (4, 1) else set()
    unknown = {key for key in settings_of(found) if key.encode() not in known}
    assert unknown <= new, f"Spark {pyspark.__version__} does not know {unknown - new}"


@pytest.mark.system
@pytest.mark.nightly
def test_spark_makes_an_executor_of_the_template_that_has_what_its_command_uses(
    found: dict[str, Any], tmp_path: Path
) -> None:
    data = found["ConfigMap"]["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-c", BUILD),
            *(str(tmp_path / name) for name in ("spark-defaults.conf", "executor.yaml")),
        ],
        env={"JAVA_HOME": str(Path(find_java()).resolve().parents[1]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert not done.returncode, done.stderr
    made = json.loads(done.stdout)
    container = made["container"]
    command, template = container["command"], yaml.safe_load(data["executor.yaml"])
    assert command == template["spec"]["containers"][0]["command"]
    assert container["args"] == ["executor"]
    variables = {each["name"] for each in container["env"]}
    used = set(re.findall(r"\$\{?!?(SPARK_\w+)", command[-1])) - {"SPARK_JAVA_OPT_", "SPARK_HOME"}
    assert used and used <= variables, used - variables
    settings = settings_of(found)
    (url,) = [each["value"] for each in container["env"] if each["name"] == "SPARK_DRIVER_URL"]
    assert url.endswith(f"@{settings['spark.driver.host']}:{settings['spark.driver.port']}")
    options = [each["value"] for each in container["env"] if "JAVA_OPT" in each["name"]]
    assert "-XX:+UseSerialGC" in options
    assert container["resources"]["limits"]["memory"] == "2012Mi"
    labels = made["pod"]["metadata"]["labels"]
    wanted = template["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    assert wanted.items() <= labels.items()
    assert made["pod"]["spec"]["topologySpreadConstraints"][0]["maxSkew"] == 1


# -- files of containers, without a daemon ---------------------------------------------------------


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "conf" / "containers"


def test_the_cluster_of_the_compose_file_starts_with_keys_that_exist_and_embeds_no_server(
    tmp_path: Path,
) -> None:
    content, _ = read_yaml(str(FOLDER / "compose.yaml"))
    assert set(content["services"]) == {"redis", "zookeeper", "cluster"}
    cluster = content["services"]["cluster"]
    result = (FOLDER / cluster["build"]["context"] / cluster["build"]["dockerfile"]).resolve()
    assert result == FOLDER / "Containerfile"
    words = parser().parse_args(cluster["command"][1:])
    given = tmp_path / "cluster.yaml"
    overrides = dict(parse_override(each) for each in words.c)
    given.write_text(
        "".join(f"{key}: {value}\n" for key, value in overrides.items()), encoding="utf-8"
    )
    conf = cluster_conf(load_conf(str(given)))  # unknown keys and wrong values are refused
    assert not_configured(conf) == []
    result = cluster["environment"]
    assert result == {"SPARKSTORM_CLUSTER": str(Path("/work") / connection_path(conf))}
    named = {*content["secrets"], *content["volumes"]}
    used = {
        each.partition(":")[0]
        for service in content["services"].values()
        for each in service.get("volumes", ())
    }
    assert (
        used
        | {each for service in content["services"].values() for each in service.get("secrets", ())}
        == named
    )


def test_the_container_installs_extras_that_the_package_has() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    found = re.search(r"'/src\[([\w,]+)\]'", (FOLDER / "Containerfile").read_text(encoding="utf-8"))
    assert found is not None and set(found[1].split(",")) <= set(setup["options.extras_require"])
