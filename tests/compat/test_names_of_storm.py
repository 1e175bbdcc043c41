"""The table of names in docs/from-storm.md has every method of Storm that a topology's code calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "from-storm.md"
# public methods in storm-client of the repository apache/storm at 73da988d9 (July 2026), without
# those that the framework alone calls (constructors, getOutputter, setContext)
METHODS = {
    "InputDeclarer": "allGrouping customGrouping directGrouping fieldsGrouping globalGrouping grouping"
    " localOrShuffleGrouping noneGrouping partialKeyGrouping shuffleGrouping",
    "TopologyBuilder": "setSpout setBolt createTopology addWorkerHook",
    "ComponentConfigurationDeclarer": "getComponentConfiguration addConfiguration addConfigurations"
    " addResource addResources setDebug setMaxSpoutPending setMaxTaskParallelism setNumTasks"
    " addSharedMemory setCPULoad setMemoryLoad",
    "OutputFieldsDeclarer": "declare declareStream",
    "OutputCollector": "emit emitDirect ack fail flush reportError resetTimeout getPendingCount",
    "ISpout": "open nextTuple ack fail activate deactivate close",
    "IBolt": "prepare execute cleanup declareOutputFields",
    "IStatefulBolt": "initState preCommit prePrepare preRollback",
    "KeyValueState": "get put delete prepareCommit commit rollback",
    "ITuple": "getBoolean getBooleanByField getByte getByteByField getDouble getDoubleByField getFields"
    " getFloat getFloatByField getInteger getIntegerByField getValues select getLong getLongByField"
    " getValue getValueByField getShort getShortByField getString getStringByField contains getBinary"
    " getBinaryByField fieldIndex size",
    "Tuple": "getContext getSourceGlobalStreamId getMessageId getSourceComponent getSourceStreamId"
    " getSourceTask",
    "TopologyContext": "registerMetric setAllSubscribedState setSubscribedState registerGauge"
    " registerCounter getThisOutputFields registerHistogram getRegisteredMetricByName getHooks"
    " getThisSources getThisOutputFieldsForStreams getBlobToLastKnownVersion getThisTargets"
    " getThisInputFields registerMeter getExecutorData getTaskData getThisStreams getThisComponentId"
    " toJSONString registerTimer getThisTaskId getThisTaskIndex addTaskHook registerMetricSet"
    " setExecutorData setTaskData",
    "WorkerTopologyContext": "getTaskToNodePort getNodeToHost getSharedExecutor getThisWorkerPort"
    " getThisWorkerTasks getResource getAssignmentId getCodeDir getPIDDir",
    "GeneralTopologyContext": "getComponentCommon getComponentOutputFields getComponentTasks getSources"
    " getTaskToComponent getTargets getConf getComponentIds getComponentStreams getRawTopology"
    " getComponentId getStormId doSanityCheck maxTopologyMessageTimeout",
    "BaseWindowedBolt": "withLag withLateTupleStream withTimestampExtractor withTimestampField"
    " withTumblingWindow withWatermarkInterval withWindow days hours minutes seconds of",
    "Window": "get getExpired getNew getEndTimestamp getStartTimestamp getIter",
    "JoinBolt": "join leftJoin select withOutputStream",
    "ITaskHook": "boltAck boltExecute boltFail emit spoutAck spoutFail prepare cleanup",
    "IWorkerHook": "start shutdown",
    "TupleUtils": "isTick putTickFrequencyIntoComponentConfig chooseTaskIndex",
    "CustomStreamGrouping": "prepare chooseTasks",
}


@pytest.mark.parametrize("interface", METHODS)
def test_every_method_of_storm_is_in_the_table_of_names(interface: str) -> None:
    rows = PAGE.read_text(encoding="utf-8").partition("## Names of Storm")[2].splitlines()
    names = set(re.findall(r"\w+", " ".join(row.split("|")[1] for row in rows if "|" in row)))
    assert set(METHODS[interface].split()) - names == set()
